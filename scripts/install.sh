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
cd "$ROOT"

DESTDIR=${DESTDIR:-}
if [[ ${1:-} == --compile ]]; then
  : # Nothing is written outside the checkout.
elif [[ -n $DESTDIR ]]; then
  mkdir -p "$DESTDIR"
  DESTDIR=$(cd "$DESTDIR" && pwd -P)
else
  for dir in "$PG_LIBDIR" "$PG_SHAREDIR/extension"; do
    [[ -w $dir ]] || die "$(id -un) cannot write to $dir: run 'make all', then 'sudo make install', or name another folder: make install DESTDIR=/path"
  done
fi

# With sudo there is often no cargo. Then this installs what `make all` has built, if nothing has
# changed since. The build for another installation of the same version would not do.
stamp=$BUILT.for
if command -v cargo >/dev/null; then
  rm -f "$stamp"
  scripts/build.sh --compile
  echo "$PG_LIBDIR" >"$stamp"
elif [[ $(cat "$stamp" 2>/dev/null || :) != "$PG_LIBDIR" || -n $(find src domain sql Cargo.toml Cargo.lock fetchq.control -newer "$stamp" -print -quit) ]]; then
  die "there is no cargo here, and no build of this state of the sources: run 'make all' as the user who has cargo, then 'make install' again"
fi
if [[ ${1:-} == --compile ]]; then exit; fi

put_files "$DESTDIR"
step "install: done; preload the library ('shared_preload_libraries'), restart the server, and 'create extension fetchq'"
