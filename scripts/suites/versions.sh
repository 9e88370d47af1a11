#!/usr/bin/env bash
# The files of several versions of fetchq in one server: a library that does not fit the catalog, and
# upgrades by `alter extension fetchq update`. The catalog that an upgrade leaves must equal a fresh one,
# object by object: for every release whose install script is in sql/, and for made-up releases, which
# also show that the comparison finds what a step forgets. CONTRIBUTING.md has the recipe of a release.
#
# The files are added to another copy of the PostgreSQL of PG_CONFIG.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/suites/upgrade/common.sh
. "$(dirname "$0")/upgrade/common.sh"
# That each place of the checkout has the same version is a test of no build.
one "the checkout has one version" scripts/version.py --check
one "a place with another version is found" scripts/version.py --self-test
needs "$PG_LIBDIR/fetchq.so"
begin versions
copy_server "$DIR/pg"
put_files "$DIR/pg" >/dev/null
BIN=$DIR/pg${PG_BINDIR#"$SERVER"} EXTENSIONS=$DIR/pg${PG_SHAREDIR#"$SERVER"}/extension
VERSION=$(sed -n "s/^default_version = '\(.*\)'/\1/p" "$EXTENSIONS/fetchq.control")
INSTALL=$EXTENSIONS/fetchq--$VERSION.sql
NEWER=999.0.0 OLDER=4.9.0 # Releases that do not exist.
PORT=54331
needs "$INSTALL"

sql() { psql_on "$PORT" "$@"; }
# new_database NAME — make an empty database.
new_database() { sql postgres -c 'set client_min_messages = warning' -c "drop database if exists $1" -c "create database $1 template template0"; }
# default_is VERSION — what `create extension` and `alter extension … update` install without a version.
default_is() { sed -i "s/^default_version = .*/default_version = '$1'/" "$EXTENSIONS/fetchq.control"; }
# step FROM TO — write the upgrade script from stdin, with the last line that each must have.
WAKE='select fetchq.background_worker_wake();'
step() { { cat; echo "$WAKE"; } >"$EXTENSIONS/fetchq--$1--$2.sql"; }
# fails_with DATABASE STATEMENT STATE TEXT — a statement fails with an SQLSTATE, and its hint has a text.
fails_with() {
  local said
  if said=$(sql "$1" -v VERBOSITY=verbose -c "$2" 2>&1); then echo "it succeeded: $2"; return 1; fi
  grep -q "ERROR:  $3: " <<<"$said" && grep -q "HINT:.*$4" <<<"$said" || { echo "$said"; return 1; }
}
catalog() { sql "$1" -f "$ROOT/scripts/suites/upgrade/catalog.sql"; }
# same_catalog DATABASE FRESH — compare the catalogs of two databases.
same_catalog() {
  catalog "$1" >"$DIR/$1.catalog" && catalog "$2" >"$DIR/$2.catalog" || return
  (($(wc -l <"$DIR/$2.catalog") > 1000)) || { echo "the catalog of $2 has too few lines"; return 1; }
  diff "$DIR/$1.catalog" "$DIR/$2.catalog"
}
# only_differs DATABASE FRESH PATTERN — the catalogs differ, in lines with this pattern and no others.
only_differs() {
  local lines
  if lines=$(same_catalog "$1" "$2"); then echo "no difference was found"; return 1; fi
  echo "$lines"
  grep -q "^[<>].*$3" <<<"$lines" && ! grep '^[<>]' <<<"$lines" | grep -v "$3"
}

# ------------------------------------------------ a library that does not fit --
PUSH="select fetchq.doc_append('q', '{}')"

library_is_newer() {
  cp "$INSTALL" "$EXTENSIONS/fetchq--$OLDER.sql"
  step "$OLDER" "$VERSION" </dev/null
  new_database newer_library
  sql newer_library -c "create extension fetchq version '$OLDER'"
  fails_with newer_library "$PUSH" 42P15 'alter extension fetchq update' &&
    [[ $(sql newer_library -c 'select extension_version, library_version from fetchq.info()') == "$OLDER|$VERSION" ]] &&
    sql newer_library -c 'select hint from fetchq.status()' | grep -q 'alter extension fetchq update' &&
    says_once newer_library 'is older than' &&
    sql newer_library -c 'alter extension fetchq update' -c "select fetchq.queue_create('q')" -c "$PUSH" >/dev/null &&
    serves newer_library
}

library_is_older() {
  step "$VERSION" "$NEWER" </dev/null
  step "$NEWER" "$VERSION" </dev/null
  new_database older_library
  sql older_library -c 'create extension fetchq' -c "select fetchq.queue_create('q')" -c "$PUSH" >/dev/null
  serves older_library || return
  default_is "$NEWER"
  # A session that was there before, in the middle of a transaction, knows it at once.
  {
    echo "begin; $PUSH;"
    echo '\! touch '"$DIR/pushed"
    echo '\! while [ ! -e '"$DIR/upgraded"' ]; do sleep 0.1; done'
    echo "$PUSH;"
  } >"$DIR/session.sql"
  psql_on "$PORT" older_library -v VERBOSITY=verbose -f "$DIR/session.sql" >"$DIR/session.out" 2>&1 </dev/null &
  local session=$! i
  for ((i = 0; i < 600; i++)); do [[ -e $DIR/pushed ]] && break; nap 0.1; done
  sql older_library -c 'alter extension fetchq update'
  as_pg touch "$DIR/upgraded"
  if wait "$session"; then echo "the session did not notice"; return 1; fi
  grep -q 'ERROR:  42P15' "$DIR/session.out" || { cat "$DIR/session.out"; return 1; }
  local before; before=$(sql older_library -c 'table fetchq_data.q__docs')
  fails_with older_library "$PUSH" 42P15 "Install the files of fetchq $NEWER" &&
    fails_with older_library "insert into fetchq_data.q__docs (subject, status) values ('s', 1)" 42P15 "Install the files" &&
    says_once older_library 'is newer than' &&
    until_on "$PORT" older_library "the background worker has left" \
      "select count(*) = 0 from pg_stat_activity where backend_type = 'fetchq background worker' and datname = 'older_library'" &&
    [[ $(sql older_library -c 'table fetchq_data.q__docs') == "$before" ]] &&
    sql older_library -c "alter extension fetchq update to '$VERSION'" -c "$PUSH" >/dev/null &&
    serves older_library
  local rc=$?
  default_is "$VERSION"
  return "$rc"
}

# says_once DATABASE TEXT — the log says once that the launcher leaves a database alone.
says_once() {
  local i line="fetchq launcher: database \"$1\" gets no background worker, because its extension $2"
  for ((i = 0; i < 600; i++)); do
    if as_pg grep -q "$line" "$DATA.log"; then break; fi
    nap 0.1
  done
  [[ $(as_pg grep -c "$line" "$DATA.log") == 1 ]] || { as_pg tail -n 20 "$DATA.log"; return 1; }
}
serves() {
  until_on "$PORT" "$1" "the background worker serves $1" \
    "select count(*) = 1 from pg_stat_activity where backend_type = 'fetchq background worker' and datname = '$1'"
}

# ------------------------------------------------------------ upgrade scripts --
# A queue of every kind, so that its tables, indexes and triggers are compared too.
queues() { sql "$1" -f "$ROOT/scripts/suites/upgrade/queues.sql" >/dev/null; }

# released VERSION — a released version, upgraded to this one, equals a fresh installation; also where
# its dump is restored. The dump was made by the release (scripts/freeze.sh).
released() {
  local old=$1 name=v${1//[^0-9a-z]/_}
  cp "sql/fetchq--$old.sql" "$EXTENSIONS/"
  new_database "$name"
  # The queues are tables without registry rows: the library does not fit, so nothing may be registered.
  sql "$name" -c "create extension fetchq version '$old'" &&
    sed '/^COPY /,/^\\\.$/d' "tests/upgrade/fetchq-$old.sql" | sql "$name" -f - >/dev/null &&
    sql "$name" -c 'alter extension fetchq update' &&
    same_catalog "$name" fresh &&
    new_database "${name}_restored" &&
    sql "${name}_restored" -f - <"tests/upgrade/fetchq-$old.sql" >/dev/null &&
    same_catalog "${name}_restored" fresh &&
    [[ $(sql "${name}_restored" -c "select subject from fetchq.doc_pick('dumped')") == kept ]]
}

# The objects that a made-up release adds.
added() {
  cat <<'SQL'
create function fetchq.added(a int, b text default 'x') returns bigint language sql as 'select 1::bigint';
comment on function fetchq.added(int, text) is 'Was added';
revoke all on function fetchq.added(int, text) from public;
grant execute on function fetchq.added(int, text) to pg_monitor;
create table fetchq.added_table (id int primary key, at timestamptz default now() check (at > '2000-01-01')) with (fillfactor = 70);
comment on table fetchq.added_table is 'Was added, too';
comment on column fetchq.added_table.at is 'When';
create index added_idx on fetchq.added_table (at desc) where id > 7;
select pg_catalog.pg_extension_config_dump('fetchq.added_table', 'where id > 0');
create view fetchq.added_view as select id from fetchq.added_table;
grant select on fetchq.added_view to public;
SQL
}
added_column() { echo "alter table fetchq.schedules add column added int not null default 7; comment on column fetchq.schedules.added is 'Seven';"; }

# made_up DATABASE — upgrade by the script on stdin to a made-up release, which has all that was added.
made_up() {
  { cat; } | step "$VERSION" "$NEWER"
  new_database "$1"
  sql "$1" -c "create extension fetchq version '$VERSION'" -c "alter extension fetchq update to '$NEWER'"
}
right_step() {
  { cat "$INSTALL"; added; added_column; } >"$EXTENSIONS/fetchq--$NEWER.sql"
  new_database made_up_fresh
  sql made_up_fresh -c "create extension fetchq version '$NEWER'"
  { added; added_column; } | made_up made_up && same_catalog made_up made_up_fresh
}
restored_dump() {
  new_database dumped
  sql dumped -c 'create extension fetchq' -c "insert into fetchq.schedules (name, queue, every, due_at) values ('s', 'q', '1 hour', '4000-01-01')" &&
    as_pg "$BIN/pg_dump" -h "$SOCKET" -p "$PORT" -U postgres -d dumped >"$DIR/dump.sql" || return
  default_is "$NEWER"
  new_database restored
  # The library that restores is that of the new release, whose rows its triggers may read.
  sql restored -f - <"$DIR/dump.sql" >/dev/null &&
    same_catalog restored made_up_fresh &&
    [[ $(sql restored -c "select name, added from fetchq.schedules") == 's|7' ]]
  local rc=$?
  default_is "$VERSION"
  return "$rc"
}
# forgets NAME SED PATTERN — a step that lacks something is found, and nothing else is.
forgets() {
  { added; added_column; } | sed "$2" | made_up "$1" && only_differs "$1" made_up_fresh "$3"
}
steps_wake() {
  local file rc=0
  for file in sql/fetchq--*--*.sql; do
    # In fetchq 4 no session has the library, and unpackaged is a script for psql.
    if [[ ! -e $file || $file == sql/fetchq--4.* || $file == sql/fetchq--unpackaged--* ]]; then continue; fi
    [[ $(tail -n 1 "$file") == "$WAKE" ]] || { echo "the last line of $file is not: $WAKE"; rc=1; }
  done
  return "$rc"
}

DATA=$DIR/server
init "$BIN" "$DATA" "$PORT"
start "$DATA"
one "a newer library says what to run, and does no harm" library_is_newer
one "an older library says what to install, and does no harm" library_is_older

one "every step tells sessions and the launcher" steps_wake
new_database fresh
sql fresh -c 'create extension fetchq'
queues fresh
# Who has frozen a version changes it no more.
frozen_is_kept() { diff "sql/fetchq--$VERSION.sql" "$INSTALL"; }
for script in sql/fetchq--*.sql; do
  release=${script#sql/fetchq--} release=${release%.sql}
  case $release in
    '*' | *--* | 4.*) ;;
    "$VERSION") one "the frozen version $release is that of the sources" frozen_is_kept ;;
    *) one "version $release upgrades to what is fresh" released "$release" ;;
  esac
done

one "a step that adds everything leaves what is fresh" right_step
one "a dump of the old version is restored into what is fresh" restored_dump
one "a step without a comment is found" forgets no_comment '/^comment on function/d' 'fetchq.added(integer,\(pg_catalog.\)\?text) | comment'
one "a step without a grant is found" forgets no_grant '/^grant execute/d' 'fetchq.added(integer,\(pg_catalog.\)\?text) | \(initial \)\?privileges'
one "a step without a revoke is found" forgets no_revoke '/^revoke/d' 'fetchq.added(integer,\(pg_catalog.\)\?text) | \(initial \)\?privileges'
one "a step with another default is found" forgets other_default "s/default 'x'/default 'y'/" 'fetchq.added(integer,\(pg_catalog.\)\?text) | definition'
one "a step without an index is found" forgets no_index '/^create index/d' 'added_idx'
one "a step with other storage options is found" forgets other_options 's/ with (fillfactor = 70)//' 'fetchq.added_table | options'
one "a step whose table is not dumped is found" forgets not_dumped '/config_dump/d' 'configuration fetchq.added_table'
one "a step with another type of a column is found" forgets other_type 's/added int not null/added bigint not null/' 'column added'
one "a step without a comment on a column is found" forgets no_column_comment "s/ comment on column fetchq.schedules.*//" 'column added | comment'
one "a step with an object that is no member is found" forgets no_member 's/^grant select on fetchq.added_view.*/&\nalter extension fetchq drop view fetchq.added_view;/' 'added_view.* | \(member\|initial privileges\)'
stop "$DATA"
finish
