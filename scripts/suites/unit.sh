#!/usr/bin/env bash
# The tests inside the crate (#[test] and #[pg_test]), by cargo pgrx test.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
load_state
scratch

data=$STATE/unit
as_pg_dir "$data"
# `cargo pgrx test` installs its build by `sudo cp`, over the library in place,
# which would crash a running server that has it loaded. Away with the old one.
stale=$PG_LIBDIR/fetchq.so
if [[ -e $stale ]]; then
  if [[ -w $PG_LIBDIR ]]; then rm -f "$stale"; else need_sudo "installing into $PG_LIBDIR"; $SUDO rm -f "$stale"; fi
fi
runas=()
if ((EUID == 0)); then
  runas=(--runas "$SERVER_USER" --pgdata "$data")
elif [[ ! -w $PG_LIBDIR ]]; then
  runas=(--runas "$USER" --pgdata "$data") # as oneself; makes pgrx install by sudo
fi

rc=0
keep "$SCRATCH" cargo pgrx test --no-default-features --features "$FEATURE pg_test" "${runas[@]}" "$FEATURE" || rc=$?
sum_cargo "$SCRATCH" "$rc"
as_pg rm -rf "$data"/* "$data" 2>/dev/null || rm -rf "$data"
exit "$rc"
