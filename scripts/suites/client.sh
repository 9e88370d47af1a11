#!/usr/bin/env bash
# A real client against the server: the workspace member tests/client.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/client/Cargo.toml
scratch

rc=0
# One at a time: the tests restart and crash servers, and measure.
keep "$SCRATCH" cargo test --release -p fetchq-client-tests -- --test-threads=1 || rc=$?
sum_cargo "$SCRATCH" "$rc"
# The safety net of the ready floors has found nothing on this server, in none of them.
misses=$("$PG_BINDIR/psql" -XAtc 'select floor_misses from fetchq.ready_stats()') || rc=1
one "floor_misses is 0" test "$misses" == 0
exit "$rc"
