#!/usr/bin/env bash
# Build the extension in release mode and install it into the PostgreSQL of PG_CONFIG.
#
#   build.sh --compile    only build it
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_pg
with_lock build
cd "$ROOT"

features=(--no-default-features --features "$FEATURE")
extensiondir=$("$PG_CONFIG" --sharedir)/extension
log=$ROOT/.pg/build.log

step "build: fetchq for PostgreSQL $PG_MAJOR, release (the first build takes about 2 minutes)"
if [[ ${1:-} == --compile ]]; then
  cargo pgrx package --pg-config "$PG_CONFIG" "${features[@]}"
  exit
fi
if [[ -w $PG_LIBDIR && -w $extensiondir ]]; then
  run_quiet "build" "$log" cargo pgrx install --release --pg-config "$PG_CONFIG" "${features[@]}"
else
  need_sudo "installing into $PG_LIBDIR"
  # Compile before anything is touched. Then remove the old library, because --sudo overwrites it in
  # place, which would crash a server that has it loaded.
  run_quiet "build" "$log" cargo pgrx package --pg-config "$PG_CONFIG" "${features[@]}"
  $SUDO rm -f "$PG_LIBDIR/fetchq.so"
  # This does not use run_quiet, because sudo may ask for a password.
  cargo pgrx install --sudo --release --pg-config "$PG_CONFIG" "${features[@]}" 2>&1 | tee "$log"
fi
step "build: installed in $PG_LIBDIR and $extensiondir"
