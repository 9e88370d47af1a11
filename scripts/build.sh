#!/usr/bin/env bash
# Build the extension in release mode, and install it into the server of this checkout.
#
#   build.sh --compile    only build it: the files are in target/fetchq-pg15, for PostgreSQL 15
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_pg
with_lock build
cd "$ROOT"
[[ -f $("$PG_CONFIG" --pgxs) ]] || die "$PG_CONFIG has no server headers (pgxs): install them, such as postgresql-server-dev-$PG_MAJOR"

step "build: fetchq for PostgreSQL $PG_MAJOR, release (the first build takes about 2 minutes)"
run_quiet "build" "$ROOT/.pg/build.log" cargo build --release --lib --no-default-features --features "$FEATURE"
gather "${CARGO_TARGET_DIR:-target}/release/libfetchq.so"
if [[ ${1:-} == --compile ]]; then step "build: the files are in $BUILT"; exit; fi

load_server
put_files "$SERVER" >/dev/null
step "build: installed in $SERVER"
