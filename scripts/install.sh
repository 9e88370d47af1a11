#!/usr/bin/env bash
# Build the extension, and put its files where the PostgreSQL of PG_CONFIG looks for them.
#
#   install.sh --compile    only build; `make all` does that
#
#   DESTDIR=/path    write below this folder instead, at the same paths: no root is needed. Packages
#                    and images are made that way.
#
# It is for people who install, and for packages: no dev server, no tests, nothing from the network
# that cargo has already fetched. `make build` is for people who work on fetchq.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_pg
with_lock build
cd "$ROOT"

libdir=$PG_LIBDIR extensiondir=$("$PG_CONFIG" --sharedir)/extension
DESTDIR=${DESTDIR:-}
if [[ ${1:-} == --compile ]]; then
  : # Nothing is written outside the checkout.
elif [[ -n $DESTDIR ]]; then
  mkdir -p "$DESTDIR"
  DESTDIR=$(cd "$DESTDIR" && pwd -P)
else
  for dir in "$libdir" "$extensiondir"; do
    [[ -w $dir ]] || die "$(id -un) cannot write to $dir: run 'make all', then 'sudo make install', or name another folder: make install DESTDIR=/path"
  done
fi
built=${CARGO_TARGET_DIR:-target}/install-pg$PG_MAJOR
stamp=$built/complete

compile() {
  rm -rf "$built"
  [[ -f $("$PG_CONFIG" --pgxs) ]] || die "$PG_CONFIG has no server headers (pgxs): install them, such as postgresql-server-dev-$PG_MAJOR"
  [[ $(cargo pgrx --version 2>/dev/null || :) == "cargo-pgrx $PGRX_VERSION" ]] ||
    die "this needs cargo-pgrx $PGRX_VERSION: run 'make setup', or 'cargo install cargo-pgrx --version $PGRX_VERSION --locked'"
  # pgrx wants a file of settings, even if it needs nothing from it here.
  PGRX_HOME=${PGRX_HOME:-$HOME/.pgrx}
  export PGRX_HOME
  if ! grep -qs "^pg$PG_MAJOR *=" "$PGRX_HOME/config.toml"; then
    run_quiet "cargo pgrx init" "$ROOT/.pg/install.log" cargo pgrx init "--pg$PG_MAJOR" "$PG_CONFIG"
  fi
  step "install: building fetchq for PostgreSQL $PG_MAJOR (the first build takes about 2 minutes)"
  run_quiet "build" "$ROOT/.pg/install.log" cargo pgrx package --pg-config "$PG_CONFIG" \
    --no-default-features --features "$FEATURE" --out-dir "$built"
  echo "$libdir" >"$stamp"
}

# With sudo there is often no cargo. Then this installs what `make all` has built, if nothing has
# changed since.
if command -v cargo >/dev/null; then
  compile
elif [[ $(cat "$stamp" 2>/dev/null || :) != "$libdir" || -n $(find src sql Cargo.toml Cargo.lock fetchq.control -newer "$stamp" -print -quit) ]]; then
  die "there is no cargo here, and no build of this state of the sources: run 'make all' as the user who has cargo, then 'make install' again"
fi
if [[ ${1:-} == --compile ]]; then step "install: built in $built"; exit; fi

# put MODE FILE FOLDER — install a file under a temporary name, and rename it. A server that has the
# old library loaded keeps it: writing into it would crash that server.
put() {
  local to=$DESTDIR$3/${2##*/}
  install -d -m 755 "$DESTDIR$3"
  install -m "$1" "$2" "$to.new"
  mv -f "$to.new" "$to"
  echo "$to"
}
put 755 "$built$libdir/fetchq.so" "$libdir"
put 644 "$built$extensiondir/fetchq.control" "$extensiondir"
# The install script of this version, and every upgrade script.
for file in "$built$extensiondir"/fetchq--*.sql; do put 644 "$file" "$extensiondir"; done
for file in sql/fetchq--*.sql; do
  if [[ -f $file && ! -f $built$extensiondir/${file##*/} ]]; then put 644 "$file" "$extensiondir"; fi
done
step "install: done; preload the library ('shared_preload_libraries'), restart the server, and 'create extension fetchq'"
