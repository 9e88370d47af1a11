#!/usr/bin/env bash
# The image, as a user meets it: it is built from the checkout, and its containers are run, stopped,
# killed and upgraded. It is not one of the suites that `make test` runs by default, because the
# first build takes about 10 minutes:
#
#   make test SUITE=image
#   DOCKER=podman make test SUITE=image
#
# IMAGE_MAJOR=17   the major version; by default that of PG_CONFIG
# BUILD=0          take the images fetchq/fetchq-test:… that exist, without a build
# COMPOSE=…        the command for compose.yml; by default `docker compose`, or podman-compose
#
# All containers, volumes and networks are removed at the end. The images stay, as a cache.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/../docker.sh"

why=$(no_engine)
if [[ -n $why ]]; then skipped "all tests" "$why: they need Docker, or podman with DOCKER=podman"; exit 0; fi

major=${IMAGE_MAJOR:-$PG_MAJOR}
export TAG_PREFIX=fetchq/fetchq-test
IMAGE=$TAG_PREFIX:$major-$VERSION CNPG=$TAG_PREFIX-cnpg:$major-$VERSION
BASE=${POSTGRES_IMAGE:-docker.io/library/postgres:$major-bookworm}
MOUNT=$(data_mount "$major")
RUN=fetchq-test-$$ # The name of each container, volume and network begins with it.
PASSWORD='it is a "secret"'
DIR=$(mktemp -d)
NAME='' PORT='' CONSOLE_PORT='' USER_NAME=postgres DATABASE=postgres WORKERS=()

# engine ARGUMENT… — run the engine, without podman's messages about a systemd that is not there.
engine() { "$DOCKER" "$@" 2> >(grep -v 'systemd connection' >&2 || :); }

end() {
  local rc=$? pid
  trap - EXIT
  rm -f "$DIR/go"
  for pid in "${WORKERS[@]}"; do wait "$pid" 2>/dev/null || :; done
  remove_all
  rm -rf "$DIR"
  exit "$rc"
}
remove_all() {
  local kind ids
  mapfile -t ids < <("$DOCKER" ps -aq --filter "name=$RUN")
  if ((${#ids[@]})); then engine rm -fv "${ids[@]}" >/dev/null 2>&1 || :; fi
  for kind in volume network; do
    mapfile -t ids < <("$DOCKER" "$kind" ls --filter "name=$RUN" --format '{{.Name}}')
    if ((${#ids[@]})); then "$DOCKER" "$kind" rm "${ids[@]}" >/dev/null 2>&1 || :; fi
  done
}

# free_port — print a TCP port that nothing listens on.
free_port() { "$ROOT/scripts/free-port.sh"; }

# serve NAME VOLUME [OPTION…] [-- COMMAND…] — start a container of $IMAGE on a free port, and make it
# the one that `sql` talks to. The port is the same inside and outside, so that the tests also work
# on an engine that has only the network of the host.
serve() {
  local volume=$2 options=()
  NAME=$RUN-$1 PORT=$(free_port); shift 2
  while (($#)) && [[ $1 != -- ]]; do options+=("$1"); shift; done
  if (($#)); then shift; fi
  engine run -d --name "$NAME" -p "127.0.0.1:$PORT:$PORT" -e PGPORT="$PORT" -e POSTGRES_PASSWORD="$PASSWORD" \
    -v "$RUN-$volume:$MOUNT" "${options[@]}" "$IMAGE" "$@" >/dev/null
}
healthy() { wait_healthy "$NAME" 120; }
gone() { engine stop -t 60 "$NAME" >/dev/null && engine rm -v "$NAME" >/dev/null; }
log() { "$DOCKER" logs "$NAME" 2>&1; }

# on_host_network — true if the container has the network of the host.
on_host_network() { [[ $("$DOCKER" inspect -f '{{.HostConfig.NetworkMode}}' "$NAME" 2>/dev/null) == host ]]; }

# address — print an address of the server that asks for the password. The official image trusts
# 127.0.0.1, which on the network of the host is every client on this machine.
address() { if on_host_network; then hostname -I | awk '{ print $1 }'; else echo 127.0.0.1; fi; }

# sql [OPTION…] — run psql on this machine, over TCP and with the password.
sql() {
  PGPASSWORD=$PASSWORD PGCONNECT_TIMEOUT=10 "$PG_BINDIR/psql" -XqAt -v ON_ERROR_STOP=1 \
    -h "$(address)" -p "$PORT" -U "$USER_NAME" -d "$DATABASE" "$@"
}

# is WHAT EXPECTED ACTUAL — compare two values.
is() {
  [[ $2 == "$3" ]] && return
  printf 'FAILED: %s\n--- expected\n%s\n--- is\n%s\n' "$@"
  return 1
}

# until_is WHAT EXPECTED QUERY — wait until a query returns a value.
until_is() {
  local deadline=$((SECONDS + 300)) now=''
  while ((SECONDS < deadline)); do
    now=$(sql -c "$3" 2>&1) || :
    if [[ $now == "$2" ]]; then return; fi
    sleep 0.2
  done
  is "$1" "$2" "$now"
}

# works — fetchq is there, preloaded, with its background worker, and a document goes through.
works() {
  is "the version" "$VERSION|$VERSION|t" "$(sql -c 'select extension_version, library_version, is_preloaded from fetchq.info()')" &&
    until_is "the background worker" t 'select has_background_worker from fetchq.info()' &&
    sql -c "select fetchq.queue_create('q$RANDOM')" >/dev/null
}

# ------------------------------------------------------------------ the image --
build() { PG_MAJOR=$major TAG_SUFFIX='' scripts/image.sh server cnpg console; }

# files IMAGE — list the files of an image, with their type, mode, owner and content.
files() {
  local rc=0
  engine create --name "$RUN-files" "$1" none >/dev/null || return
  "$DOCKER" export "$RUN-files" | /usr/bin/python3 -c '
import hashlib, sys, tarfile
tar = tarfile.open(fileobj=sys.stdin.buffer, mode="r|")
for member in tar:
    data = hashlib.sha256(tar.extractfile(member).read()).hexdigest() if member.isfile() else member.linkname
    print(member.name.removeprefix("./"), member.type.decode(), oct(member.mode), member.uid, member.gid, data, sep="\t")
' | sort || rc=$?
  engine rm -fv "$RUN-files" >/dev/null
  return "$rc"
}
# What the engine itself puts into each container.
ENGINE='^(\.dockerenv|(dev|proc|sys|run|etc|tmp)(/(console|pts|shm|hosts|hostname|resolv\.conf|mtab|\.containerenv|secrets))?/?)$'

# extension FOLDER — the files of the extension in FOLDER: install script, upgrades, control file.
extension() {
  local file
  for file in fetchq--4.0.0--4.0.2.sql fetchq--4.0.1--4.0.2.sql "fetchq--4.0.2--$VERSION.sql" \
    "fetchq--$VERSION.sql" "fetchq--unpackaged--$VERSION.sql" fetchq.control; do
    echo "$1/$file"
  done
}
only_fetchq() {
  files "$BASE" >"$DIR/base" && files "$IMAGE" >"$DIR/image" || return
  (($(wc -l <"$DIR/base") > 1000)) || { echo "FAILED: $BASE has hardly any files"; return 1; }
  cut -f 1 "$DIR/base" >"$DIR/base.names"; cut -f 1 "$DIR/image" >"$DIR/image.names"
  is "files that were removed" '' "$(comm -23 "$DIR/base.names" "$DIR/image.names")" &&
    is "files that were added" "docker-entrypoint-initdb.d/10-fetchq.sql
usr/lib/postgresql/$major/lib/fetchq.so
usr/local/bin/fetchq-entrypoint.sh
$(extension "usr/share/postgresql/$major/extension")" "$(comm -13 "$DIR/base.names" "$DIR/image.names")" &&
    is "files that were changed" usr/share/postgresql/postgresql.conf.sample \
      "$(comm -23 "$DIR/base" "$DIR/image" | cut -f 1)"
}
config_kept() {
  local format='{{json .Config.Env}} {{json .Config.Volumes}} {{json .Config.ExposedPorts}} {{json .Config.Cmd}} {{.Config.StopSignal}} {{.Config.User}}'
  is "environment, volumes, ports, command, signal and user" \
    "$("$DOCKER" image inspect -f "$format" "$BASE")" "$("$DOCKER" image inspect -f "$format" "$IMAGE")"
}
cnpg_layout() {
  files "$CNPG" | cut -f 1,2 | awk -F '\t' '$2 == "0" { print $1 }' | grep -vE "$ENGINE" >"$DIR/cnpg" || return
  is "files" "lib/fetchq.so
licenses/fetchq/LICENSE
$(extension share/extension)" "$(cat "$DIR/cnpg")" &&
    is "user" 65532:65532 "$("$DOCKER" image inspect -f '{{.Config.User}}' "$CNPG")"
}

# --------------------------------------------------------------- a new volume --
fresh() { serve fresh data && healthy; }
no_password() {
  local id=$RUN-open deadline=$((SECONDS + 30)) state=''
  engine run -d --name "$id" "$IMAGE" >/dev/null || return
  while ((SECONDS < deadline)); do
    state=$("$DOCKER" inspect -f '{{.State.Status}} {{.State.ExitCode}}' "$id")
    if [[ $state == exited* ]]; then break; fi
    sleep 0.2
  done
  is "the state of the container" 'exited 1' "$state" || return
  # Not by a pipe into grep -q, which would end before it has read everything.
  [[ $("$DOCKER" logs "$id" 2>&1) == *'superuser password is not specified'* ]] || { "$DOCKER" logs "$id"; return 1; }
}
password_asked() {
  local out
  out=$(PASSWORD=wrong sql -c 'select 1' 2>&1) && { echo "FAILED: a wrong password was accepted"; return 1; }
  [[ $out == *'password authentication failed'* ]] || { echo "FAILED: $out"; return 1; }
}
# data_owner — the queues belong to a role that can neither log in nor do what a superuser does, also after the
# script of the image has run again, and in another database.
data_owner() {
  local script=/docker-entrypoint-initdb.d/10-fetchq.sql database
  local owners="select string_agg(distinct format('%s,%s,%s', r.rolname, r.rolcanlogin, r.rolsuper), ' ') from pg_roles r
    where r.oid in (select nspowner from pg_namespace where nspname = 'fetchq_data' union
                    select relowner from pg_class where relnamespace = 'fetchq_data'::regnamespace)"
  is "the data owner" fetchq_data_owner,f,f "$(sql -c "$owners")" && sql -c 'create database other' || return
  for database in "$DATABASE" other; do
    "$DOCKER" exec "$NAME" psql -Xq -v ON_ERROR_STOP=1 -U "$USER_NAME" -d "$database" -o /dev/null -f "$script" &&
      is "the data owner of $database" fetchq_data_owner,f,f "$(DATABASE=$database sql -c "$owners")" || return
  done
  sql -c 'drop database other with (force)'
}
push_and_lease() {
  sql -c "select fetchq.queue_create('mail', '{\"history\": null}')" >/dev/null &&
    sql -c "select fetchq.doc_put('mail', 'kept', '{\"to\": \"ann\"}')" >/dev/null &&
    sql -c "select fetchq.doc_put('mail', 'gone', '{\"to\": \"bob\"}')" >/dev/null &&
    is "the documents that were leased" 'gone|{"to": "bob"}
kept|{"to": "ann"}' "$(sql -c "select subject, payload from fetchq.doc_pick('mail', 0, 10, '1 hour') order by 1")" &&
    is "completed documents" 1 "$(sql -c "select fetchq.doc_complete('mail', 'gone')")"
}
planned() {
  sql -c "select fetchq.doc_put('mail', 'later', delay => '1 second')" >/dev/null &&
    until_is "the planned document" later "select subject from fetchq.doc_lease('mail', 1, '1 hour')"
}
silent_entrypoint() { ! log | grep -n 'WARNING: fetchq'; }
state() { sql -c "select subject, status, lease, payload from fetchq_data.mail__docs order by 1"; }
stop_and_start() {
  local before
  before=$(state) && [[ -n $before ]] &&
    engine stop -t 60 "$NAME" >/dev/null && engine start "$NAME" >/dev/null && healthy &&
    is "the documents" "$before" "$(state)" && works
}
another_container() {
  local before
  before=$(state) && [[ -n $before ]] && gone && serve again data && healthy &&
    is "the documents" "$before" "$(state)" && works && silent_entrypoint
}

# ------------------------------------------------------- a server that restarts --
# work — lease and complete documents until $DIR/go is gone. What it writes and the completion are
# one transaction. It connects again when the server is gone.
work() {
  while [[ -e $DIR/go ]]; do
    sql >/dev/null 2>&1 <<'SQL' || sleep 0.2
select subject, lease from fetchq.doc_lease('work', 1, '3 seconds') \gset
select pg_sleep(0.1);
begin;
insert into done values (:'subject');
select fetchq.doc_complete('work', :'subject', lease => :lease);
commit;
SQL
  done
}
start_work() {
  sql >/dev/null <<'SQL' || return
select fetchq.queue_create('work', '{"history": null}');
select fetchq.queue_create('left');
create table done (subject text primary key);
select fetchq.doc_put('work', 'd' || n) from generate_series(1, 600) n;
select fetchq.doc_put('left', 'd' || n) from generate_series(1, 20) n;
SQL
  touch "$DIR/go"
  while ((${#WORKERS[@]} < 3)); do work & WORKERS+=($!); done
  until_is "documents are being completed" t 'select count(*) > 5 from done'
}
# in_the_middle — lease the documents of the queue `left`, for a client that does not come back.
# True if documents of the queue `work` are leased too, and others wait.
in_the_middle() {
  until_is "pending documents" 20 "select count(*) from fetchq_data.left__docs where status = 1" &&
    is "leased documents" 20 "$(sql -c "select count(*) from fetchq.doc_lease('left', 20, '5 seconds')")" &&
    until_is "leased and waiting documents" t "select bool_or(status = 2) and bool_or(status = 1) from fetchq_data.work__docs"
}
# came_back TIMES — all documents of the client that did not come back are pending again.
came_back() {
  until_is "the documents come back, as failed attempts" "20|20" \
    "select count(*), count(*) filter (where status = 1 and attempts = $1) from fetchq_data.left__docs"
}
restarted() { in_the_middle && engine restart -t 60 "$NAME" >/dev/null && healthy && works && came_back 1; }
killed() {
  local before
  in_the_middle && before=$(sql -c 'select count(*) from done') &&
    engine kill -s KILL "$NAME" >/dev/null && engine start "$NAME" >/dev/null && healthy && works &&
    is "what was committed before the kill is there" t "$(sql -c "select count(*) >= $before from done")" && came_back 2
}
none_lost() {
  until_is "each document was worked on" 600 'select count(*) from done' &&
    until_is "each document is completed" '600|600' \
      'select count(*), count(*) filter (where status = 3) from fetchq_data.work__docs' || {
    sql -c 'select status, attempts, count(*) from fetchq_data.work__docs group by 1, 2 order by 1, 2'
    return 1
  }
}
end_work() {
  rm -f "$DIR/go"
  local pid
  for pid in "${WORKERS[@]}"; do wait "$pid" 2>/dev/null || :; done
  WORKERS=()
}

# -------------------------------------------------- users, databases, read-only --
other_database() {
  local USER_NAME=ann DATABASE=shop
  serve database database -e POSTGRES_USER=ann -e POSTGRES_DB=shop && healthy && works && data_owner &&
    is "databases that have fetchq" '' "$(DATABASE=postgres sql -c "select 1 from pg_extension where extname = 'fetchq'")" && gone
}
read_only() {
  serve read-only read-only --read-only --tmpfs /tmp --tmpfs /var/run/postgresql -- -c max_connections=37 &&
    healthy && works && is "the option after the image" 37 "$(sql -c 'show max_connections')" &&
    ! "$DOCKER" exec "$NAME" touch /usr/written 2>/dev/null && gone
}
# The official image needs a volume that belongs to the user.
other_user() {
  engine run --rm --name "$RUN-chown" --entrypoint chown -v "$RUN-user:$MOUNT" "$IMAGE" 4711:4711 "$MOUNT" &&
    serve user user --user 4711:4711 && healthy && works &&
    is "the user of the server" 4711 "$("$DOCKER" exec "$NAME" id -u)" &&
    engine restart -t 60 "$NAME" >/dev/null && healthy && works && silent_entrypoint && gone
}

# ------------------------------------------- the volume of an image without fetchq --
# advice — print the SQL that the log of the container asks for.
advice() { log | sed -n 's/^ \{4\}\(.*;\)$/\1/p'; }

# old_volume VOLUME [LINE] — make a volume with the official image, as before fetchq was used.
old_volume() {
  IMAGE=$BASE serve "$1" "$1" || return
  local deadline=$((SECONDS + 60))
  until sql -c 'select 1' >/dev/null 2>&1 || ((SECONDS > deadline)); do sleep 0.2; done
  sql -c "create table old as select 42 as answer" || return
  if [[ -n ${2:-} ]]; then "$DOCKER" exec "$NAME" bash -c "echo \"$2\" >>\"\$PGDATA/postgresql.conf\"" || return; fi
  gone
}
# follow VOLUME LIST LIBRARIES — start the image on the volume, do what the log says, and look.
follow() {
  serve "$1-2" "$1" && healthy &&
    is "the data" 42 "$(sql -c 'select answer from old')" &&
    is "what the log says" "alter system set shared_preload_libraries = $2;
create extension if not exists fetchq;" "$(advice)" &&
    sql -c "$(advice | head -n 1)" && engine restart -t 60 "$NAME" >/dev/null && healthy &&
    sql -c "$(advice | sed -n 2p)" && works &&
    is "the libraries" "$3" "$(sql -c 'show shared_preload_libraries')" &&
    is "the data" 42 "$(sql -c 'select answer from old')" &&
    gone && serve "$1-3" "$1" && healthy && works && silent_entrypoint && gone
}
old() { old_volume old && follow old "'fetchq'" fetchq; }
old_with_library() {
  old_volume library "shared_preload_libraries = 'pg_stat_statements'" && follow library "'pg_stat_statements', 'fetchq'" 'pg_stat_statements, fetchq'
}
# An option of the command counts as the configuration does.
preloaded_by_option() {
  old_volume option && serve option-1 option -- -c shared_preload_libraries=pg_stat_statements && healthy &&
    is "what the log says" 1 "$(log | grep -c 'add fetchq to that option')" && gone && serve option-2 option -- -c shared_preload_libraries=fetchq && healthy &&
    sql -c 'create extension fetchq' && works && silent_entrypoint && gone
}

# ------------------------------------------------------------------ CloudNativePG --
# The operator mounts the image below /extensions, and sets these two paths.
cnpg_volume() {
  local IMAGE=$BASE
  engine create --name "$RUN-cnpg-files" "$CNPG" none >/dev/null && mkdir "$DIR/extension" &&
    "$DOCKER" cp "$RUN-cnpg-files:/lib" "$DIR/extension/lib" && "$DOCKER" cp "$RUN-cnpg-files:/share" "$DIR/extension/share" &&
    chmod -R a+rX "$DIR" &&
    serve cnpg cnpg -v "$DIR/extension:/extensions/fetchq:ro" -- -c shared_preload_libraries=fetchq \
      -c "extension_control_path=\$system:/extensions/fetchq/share" -c "dynamic_library_path=\$libdir:/extensions/fetchq/lib" &&
    until_is "the server answers" 1 'select 1' && sql -c 'create extension fetchq' && works && gone
}

# ------------------------------------------------------------ production, compose --
production() {
  local out
  PORT=$(free_port) NAME=$RUN-production
  out=$(PG_MAJOR=$major PORT=$PORT NAME=$NAME POSTGRES_PASSWORD=secret scripts/production.sh) || return
  echo "$out"
  local PASSWORD=secret
  works && is "the connection that it prints" 1 "$("$PG_BINDIR/psql" -XqAt "$(sed -n 's/^connect: psql //p' <<<"$out")" -c 'select 1')" &&
    gone && "$DOCKER" volume rm "$NAME-data-$major" >/dev/null
}

compose() {
  # shellcheck disable=SC2086  # COMPOSE can be several words.
  env PG_MAJOR="$major" DATA_MOUNT="$MOUNT" PORT="$PORT" CONSOLE_PORT="$CONSOLE_PORT" POSTGRES_PASSWORD=secret DOCS=200 \
    $COMPOSE -p "$RUN" -f docker/compose.yml --profile example --profile console "$@"
}
compose_up() {
  local build=--build
  if [[ ${BUILD:-1} == 0 ]]; then build=--no-build; fi
  PORT=$(free_port) CONSOLE_PORT=$(free_port) && compose up -d "$build" 2>&1
}
compose_healthy() { NAME=$("$DOCKER" ps --filter "name=$RUN" --format '{{.Names}}' | grep -E 'fetchq[_-]1$') && healthy; }
compose_workers() { until_is "two workers are connected" 2 "select count(*) from pg_stat_activity where query like 'call fetchq.work(%'"; }
compose_results() {
  until_is "each document has one result, and is completed" '200|200|200' \
    "select (select count(*) from results), count(*), count(*) filter (where outcome = 'completed') from fetchq_data.example__history"
}
# page HOST PATH — print the status and the text of a page of the console.
page() { curl -s -w '%{http_code}' -H "Host: $1" "http://127.0.0.1:$CONSOLE_PORT$2"; }
compose_console() {
  local deadline=$((SECONDS + 60)) text=''
  while ((SECONDS < deadline)); do
    text=$(page "localhost:$CONSOLE_PORT" /db/postgres) || :
    if [[ $text == *queues/example* ]]; then break; fi
    sleep 0.5
  done
  [[ $text == *queues/example*200 ]] || { echo "FAILED: the page of the queues is $text"; return 1; }
  [[ $text == *Read-only* ]] || { echo "FAILED: the console is not read-only"; return 1; }
  text=$(page attacker.example /db/postgres)
  [[ $text == *421 ]] || { echo "FAILED: the console answers to another name: $text"; return 1; }
  text=$(page "localhost:$CONSOLE_PORT" /metrics)
  [[ $text == *'fetchq_up{database="postgres"} 1'* ]] || { echo "FAILED: the metrics are $text"; return 1; }
}
console_licences() {
  local id
  id=$("$DOCKER" ps --filter "name=$RUN" --format '{{.Names}}' | grep -E 'console[_-]1$') &&
    "$DOCKER" cp "$id:/licenses/fetchq" "$DIR/licences" &&
    is "the licences in the image" "LICENSE
LICENSE.uPlot
third-party.txt" "$(LC_ALL=C ls "$DIR/licences")" && cmp console/licenses/third-party.txt "$DIR/licences/third-party.txt"
}
compose_down() {
  local project=label=com.docker.compose.project=$RUN
  (($("$DOCKER" ps -aq --filter "$project" | wc -l) == 5)) && compose down -v 2>&1 &&
    is "what is left" '' "$("$DOCKER" ps -aq --filter "$project"; "$DOCKER" volume ls -q --filter "$project")"
}

# ------------------------------------------------------------------------------
# The loops sleep, and do not `nap`: bash can crash when a signal ends a `read` with a time limit, and
# then it runs no trap.
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [[ ${BUILD:-1} == 0 ]]; then skipped "the images are built from the checkout" "BUILD=0"
else one "the images are built from the checkout" build; fi
"$DOCKER" image inspect "$IMAGE" >/dev/null 2>&1 || { echo "FAILED: there is no image $IMAGE"; count 0 1; exit 1; }
one "the image has the official one and fetchq only" only_fetchq
one "the image keeps the configuration of the official one" config_kept
one "the image for CloudNativePG has the files where it looks for them" cnpg_layout

one "a container without a password does not start" no_password
one "a container turns healthy" fresh
one "fetchq is in a new volume" works
one "the queues belong to a role without login" data_owner
one "a wrong password is refused" password_asked
one "documents are pushed and leased over TCP" push_and_lease
one "a planned document becomes pending" planned
one "stop and start keep the data" stop_and_start
one "another container on the volume has the data" another_container

one "clients work" start_work
one "a restart in the middle of leases, which come back" restarted
one "a kill in the middle of leases, which come back" killed
one "no document is lost" none_lost
end_work
one "the server stops" gone

one "POSTGRES_USER and POSTGRES_DB" other_database
one "a read-only root" read_only
one "an arbitrary user" other_user
one "a volume of an image without fetchq" old
one "a volume that preloads another library" old_with_library
one "a library that is preloaded by an option" preloaded_by_option

if ((major >= 18)); then
  one "the image for CloudNativePG, mounted into the official one" cnpg_volume
else
  skipped "the image for CloudNativePG, mounted into the official one" "PostgreSQL $major has no extension_control_path"
fi

# On the network of the host, the container's port is 5432, which can be in use.
engine run -d --name "$RUN-network" --entrypoint sleep "$IMAGE" 60 >/dev/null
NAME=$RUN-network
if on_host_network; then
  skipped "make production, compose" "containers have the network of the host here, so ports cannot be chosen"
else
  if [[ ${BUILD:-1} == 0 ]]; then skipped "make production" "BUILD=0"; else one "make production" production; fi
  if [[ -z ${COMPOSE:-} ]]; then
    if "$DOCKER" compose version >/dev/null 2>&1; then COMPOSE="$DOCKER compose"
    elif is_podman && command -v podman-compose >/dev/null; then COMPOSE=podman-compose; fi
  fi
  if [[ -z ${COMPOSE:-} ]]; then
    skipped compose "there is neither '$DOCKER compose' nor podman-compose; COMPOSE names another command"
  else
    engine rm -fv "$RUN-network" >/dev/null
    PASSWORD=secret
    one "compose: up" compose_up
    one "compose: the server turns healthy" compose_healthy
    one "compose: two workers are connected" compose_workers
    one "compose: each document is processed once" compose_results
    one "compose: the console shows the queues" compose_console
    one "compose: the image of the console has the licences" console_licences
    one "compose: down removes everything" compose_down
  fi
fi
remove_all
one "nothing is left" is "containers and volumes" '' "$("$DOCKER" ps -aq --filter "name=$RUN"; "$DOCKER" volume ls -q --filter "name=$RUN")"
awk '$2 > 0 { bad = 1 } END { exit bad }' "${FETCHQ_COUNTS:-/dev/null}"
