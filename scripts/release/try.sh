#!/usr/bin/env bash
# Install one package of a release into an empty environment, and run its quick start against a real server: try.sh PART.
# scripts/release.sh calls it. The last line says what was tried.
#
# The environment is a folder in /tmp, which has no checkout above it. The server of the clients runs from the
# files of the Debian package, with a copy of the PostgreSQL of this machine, below that folder.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/../docker.sh"
part=$1
cd "$ROOT"
NAME=fetchq-release-$$
dir=$(as_pg mktemp -d /tmp/fetchq-release-XXXXXX)
own=$(mktemp -d /tmp/fetchq-release-XXXXXX) # of the user, as $dir is of the server
bin='' worker=''
end() {
  local rc=$?
  trap - EXIT
  if [[ -n $worker ]]; then kill "$worker" 2>/dev/null || :; fi
  if [[ -n $bin ]]; then as_pg "$bin/pg_ctl" stop -D "$dir/data" -m immediate -s >/dev/null 2>&1 || :; fi
  if [[ $part == image ]]; then
    "$DOCKER" rm -fv "$NAME" >/dev/null 2>&1 || :
    "$DOCKER" volume rm "$NAME-socket" "$NAME-data" >/dev/null 2>&1 || :
  fi
  as_pg rm -rf "$dir" || :
  rm -rf "$own"
  exit "$rc"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
tried() { echo "tried: $*"; }

# only ARCHIVE PATTERN — every file of a list (stdin) matches a pattern; what nobody should publish is not in it.
only() {
  local bad
  bad=$(grep -vE "$2" || :)
  [[ -z $bad ]] || die "$1 has files that do not belong into it: $(head -n 5 <<<"$bad" | tr '\n' ' ')"
}
# has ARCHIVE LIST PATH… — a list of files has each of these.
has() {
  local archive=$1 list=$2 path; shift 2
  for path in "$@"; do grep -qxF -- "$path" <<<"$list" || die "$archive has no $path"; done
}

# start_server — an empty cluster with the extension of the package that was built.
start_server() {
  local deb
  load_pg
  deb=$(find "$DIST" -name "postgresql-$PG_MAJOR-fetchq_*.deb" | head -n 1)
  [[ -n $deb ]] || die "there is no package postgresql-$PG_MAJOR-fetchq in $DIST, from which the server is made: scripts/release.sh deb"
  dpkg-deb -x "$deb" "$own/pg"
  copy_server "$own/pg"
  chmod 755 "$own"
  bin=$own/pg$PG_BINDIR
  as_pg "$bin/initdb" -D "$dir/data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync >/dev/null
  printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$dir'" "shared_preload_libraries = 'fetchq'" 'fsync = off' |
    as_pg tee -a "$dir/data/postgresql.conf" >/dev/null
  chmod 755 "$dir" 2>/dev/null || as_pg chmod 755 "$dir"
  as_pg "$bin/pg_ctl" start -D "$dir/data" -l "$dir/log" -w -s || { as_pg tail -n 20 "$dir/log" >&2; die "the server does not start"; }
  export PGHOST=$dir PGUSER=postgres PGDATABASE=app PGPORT=5432
  export DATABASE_URL="postgresql:///app?host=$dir&user=postgres"
  fresh_database
}
fresh_database() {
  PGDATABASE=postgres sql -c 'drop database if exists app with (force)' -c 'create database app'
  sql -c 'create extension fetchq'
}
sql() { "$bin/psql" -XqAt -v ON_ERROR_STOP=1 "$@"; }

# until_is WANT QUERY [PID] — wait until a query gives a result; as long as the process lives, if there is one.
until_is() {
  local got='' deadline=$((SECONDS + 60))
  while ((SECONDS < deadline)); do
    got=$(sql -c "$2" 2>&1) || :
    if [[ $got == "$1" ]]; then return; fi
    if [[ -n ${3:-} ]] && ! kill -0 "$3" 2>/dev/null; then break; fi
    sleep 0.2
  done
  echo "the result of '$2' is '$got', not '$1'"
  return 1
}
# runs COMMAND… — a worker handles the document of its quick start, and stops cleanly by SIGTERM.
DONE="select outcome from fetchq_data.mail__history union all select 'completed' from fetchq_data.mail__docs where status = 3 limit 1"
runs() {
  "$@" & worker=$!
  until_is completed "$DONE" "$worker" || { kill "$worker" 2>/dev/null; die "the quick start did not complete its document"; }
  kill -TERM "$worker"
  wait "$worker" || die "the worker ended with status $? after SIGTERM"
  worker=''
}

# ------------------------------------------------------------------- the parts --
# try_source FOLDER — build the extension in an unpacked source, and run the quick start on servers with it.
try_source() {
  # The crates of others are those that the packages were built with.
  (
    cd "$1"
    export CARGO_TARGET_DIR=$ROOT/target/deb/cargo CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
    scripts/install-test.sh
  )
}
source_() {
  local file=$DIST/fetchq-$VERSION-source.tar.gz list to=$WORK/try/source
  list=$(tar -tzf "$file")
  has "$file" "$list" "fetchq-$VERSION/"{LICENSE,README.md,CHANGELOG.md,SECURITY.md,Cargo.lock}
  rm -rf "$to"; mkdir -p "$to"
  tar -C "$to" -xmzf "$file"
  try_source "$to/fetchq-$VERSION"
  tried "unpacked, built, installed below an empty folder; quick start of the README on PostgreSQL $PG_MAJOR"
}
pgxn() {
  local file=$DIST/fetchq-$VERSION-pgxn.zip to=$WORK/try/pgxn
  rm -rf "$to"; mkdir -p "$to"
  unzip -qDD "$file" -d "$to"
  # What the client of PGXN reads, and the commands that it runs.
  [[ $(/usr/bin/python3 -c 'import json, sys; m = json.load(open(sys.argv[1])); print(m["name"], m["version"])' "$to/fetchq-$VERSION/META.json") == "fetchq $VERSION" ]]
  diff -r "$SOURCE" "$to/fetchq-$VERSION" --exclude node_modules --exclude dist --exclude out --exclude pages --exclude sbom.json --exclude 'fetchq--4*' \
    --exclude 'fetchq--unpackaged*' --exclude install.sql --exclude __pycache__
  try_source "$to/fetchq-$VERSION"
  tried "unpacked, the same files as the source; make all, make install; quick start on PostgreSQL $PG_MAJOR"
}

# files_of DEB — the files of a Debian package.
files_of() { dpkg-deb --fsys-tarfile "$1" | tar -tf - | grep -v '/$'; }
deb() {
  local file done=''
  need_sudo "trying a Debian package"
  for file in "$DIST"/postgresql-*-fetchq_*.deb; do
    files_of "$file" | only "$file" '^\./usr/(lib/postgresql/[0-9]+/lib/(fetchq\.so|bitcode/)|share/(postgresql/[0-9]+/extension/fetchq|doc/postgresql-[0-9]+-fetchq/))'
    $SUDO scripts/deb-test.sh "$file"
    done+=" $(dpkg-deb -f "$file" Package)"
  done
  tried "installed in a Debian that has only PostgreSQL, upgraded, removed, purged; quick start:$done"
}
program() {
  local file extension
  load_pg
  need_sudo "trying a Debian package"
  file=$(find "$DIST" -name 'fetchq_*.deb') extension=$(find "$DIST" -name "postgresql-$PG_MAJOR-fetchq_*.deb")
  [[ -n $extension ]] || die "there is no package of the extension, which it is tried with: scripts/release.sh deb program"
  files_of "$file" | only "$file" '^\./usr/(bin/fetchq$|share/(doc/fetchq/|man/man1/|bash-completion/|zsh/|fish/))'
  # shellcheck disable=SC2024
  $SUDO env PROGRAM="$file" scripts/deb-test.sh "$extension"
  tried "installed in a Debian; put, list, show, explain, doctor and serve against a server of that Debian"
}

npm() {
  local file=$DIST/fetchq-client-$VERSION.tgz list
  list=$(tar -tzf "$file")
  has "$file" "$list" package/{package.json,README.md,LICENSE,dist/index.js,dist/index.d.ts}
  only "$file" '^package/(package\.json|README\.md|LICENSE|CHANGELOG\.md|(dist|src)/[a-z0-9./-]+\.(js|ts)(\.map)?)$' <<<"$list"
  start_server
  mkdir "$own/app"
  cd "$own/app"
  # shellcheck disable=SC2046
  command npm init -y >/dev/null && command npm install --no-audit --no-fund "$file" \
    $("$ROOT/scripts/release/quickstart.py" install "$SOURCE/clients/typescript/README.md" | grep -v '^@fetchq/client$') \
    typescript@6 @types/node@20 @types/pg
  "$ROOT/scripts/release/quickstart.py" ts node_modules/@fetchq/client/README.md >main.mts
  node_modules/.bin/tsc --strict --target es2022 --module nodenext --types node main.mts
  # It stops itself, and asserts the result.
  timeout -k 5 60 node main.mjs
  until_is completed "$DONE"
  tried "npm install of the tarball into an empty folder; its README, checked by TypeScript in strict mode, on Node $(node --version)"
}

python() {
  local file list sdist=$DIST/fetchq-$VERSION.tar.gz wheel=$DIST/fetchq-$VERSION-py3-none-any.whl
  list=$(unzip -Z1 "$wheel")
  has "$wheel" "$list" fetchq/__init__.py fetchq/py.typed "fetchq-$VERSION.dist-info/licenses/LICENSE"
  only "$wheel" "^(fetchq/|fetchq-$VERSION\.dist-info/)" <<<"$list"
  list=$(tar -tzf "$sdist")
  has "$sdist" "$list" "fetchq-$VERSION/"{LICENSE,README.md,pyproject.toml,PKG-INFO}
  only "$sdist" "^fetchq-$VERSION/(src/fetchq/|README\.md|LICENSE|pyproject\.toml|PKG-INFO|\.gitignore)" <<<"$list"
  start_server
  scripts/release/quickstart.py python "$SOURCE/clients/python/README.md" >"$own/main.py"
  cd "$own"
  for file in "$wheel" "$sdist"; do
    fresh_database
    rm -rf venv
    /usr/bin/python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check "${file}[pool]" 'psycopg[binary]'
    [[ $(venv/bin/python -c 'import fetchq; print(fetchq.__version__)') == "$VERSION" ]] || die "the version in $file is another one"
    runs venv/bin/python main.py
  done
  tried "pip install of the wheel, and of the sdist, each into an empty environment of $(/usr/bin/python3 --version); the README's worker, ended by SIGTERM"
}

rust() {
  local file=$DIST/fetchq-client-$VERSION.crate list
  list=$(tar -tzf "$file")
  has "$file" "$list" "fetchq-client-$VERSION/"{Cargo.toml,README.md,LICENSE,src/lib.rs}
  only "$file" "^fetchq-client-$VERSION/(Cargo\.(toml|lock)|Cargo\.toml\.orig|README\.md|LICENSE|CHANGELOG\.md|src/.*\.rs|examples/.*\.rs|\.cargo_vcs_info\.json)$" <<<"$list"
  start_server
  tar -C "$own" -xzf "$file"
  cd "$own"
  cargo new --quiet --vcs none app
  cd app
  cargo add --quiet --path "../fetchq-client-$VERSION"
  cargo add --quiet serde --features derive
  cargo add --quiet serde_json
  cargo add --quiet tokio --features macros,rt-multi-thread,time
  "$ROOT/scripts/release/quickstart.py" rust "../fetchq-client-$VERSION/README.md" | sed "s#postgres://localhost/app#postgres:///app?host=$dir\&user=postgres#" >src/main.rs
  CARGO_TARGET_DIR=$WORK/try/rust cargo build --quiet
  runs "$WORK/try/rust/debug/app"
  tried "a new crate with the unpacked one; its README, built by $(rustc --version | cut -d' ' -f1-2), ended by SIGTERM"
}

image() {
  local file config major mount port console=fetchq/fetchq-console:$VERSION done=''
  engine() { "$DOCKER" "$@" 2> >(grep -v 'systemd connection' >&2 || :); }
  for file in "$DIST"/*-image-*.tar.gz; do
    # podman reads compressed files from a pipe only.
    gzip -dc "$file" | engine load >/dev/null
  done
  for config in $PG_CONFIGS; do
    major=$("$config" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
    mount=$(data_mount "$major")
    port=$("$ROOT/scripts/free-port.sh")
    engine run -d --name "$NAME" -e PGPORT="$port" -e POSTGRES_PASSWORD=secret -v "$NAME-data:$mount" -v "$NAME-socket:/var/run/postgresql" \
      "fetchq/fetchq:$major-$VERSION" >/dev/null
    wait_healthy "$NAME" 120
    scripts/release/quickstart.py sql README.md | engine exec -i "$NAME" psql -XqAt -v ON_ERROR_STOP=1 -U postgres
    [[ $(engine exec "$NAME" psql -XqAt -U postgres -c 'select subject, outcome from fetchq_data.mail__history') == 'welcome-42|completed' ]]
    # The console, over the socket of that server.
    [[ $(engine run --rm -v "$NAME-socket:/var/run/postgresql" -e PGHOST=/var/run/postgresql -e PGPORT="$port" -e PGUSER=postgres "$console" list --json) == *'"mail"'* ]]
    engine rm -fv "$NAME" >/dev/null
    engine volume rm "$NAME-socket" "$NAME-data" >/dev/null
    done+=" $major"
  done
  [[ $(engine run --rm "$console" --version) == *" $VERSION" ]]
  tried "loaded from the files, run on an empty volume; quick start in a container, and the console beside it; PostgreSQL:$done"
}

load_pg
if [[ $part == source ]]; then source_; else "$part"; fi
