#!/usr/bin/env bash
# Run the tests inside the crate, #[test] and #[pg_test], by cargo pgrx test.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
load_state
scratch

data=$STATE/unit
as_pg_dir "$data"
# `cargo pgrx test` installs its build by `sudo cp`, which overwrites the library in place and would
# crash a running server that has it loaded. Therefore the old library is removed first.
stale=$PG_LIBDIR/fetchq.so
if [[ -e $stale ]]; then
  if [[ -w $PG_LIBDIR ]]; then rm -f "$stale"; else need_sudo "installing into $PG_LIBDIR"; $SUDO rm -f "$stale"; fi
fi
runas=()
if ((EUID == 0)); then
  runas=(--runas "$SERVER_USER" --pgdata "$data")
elif [[ ! -w $PG_LIBDIR ]]; then
  runas=(--runas "$USER" --pgdata "$data") # The same user; the option makes pgrx install by sudo.
fi

rc=0
keep "$SCRATCH" cargo pgrx test --no-default-features --features "$FEATURE pg_test" "${runas[@]}" "$FEATURE" || rc=$?
sum_cargo "$SCRATCH" "$rc"
as_pg rm -rf "$data"/* "$data" 2>/dev/null || rm -rf "$data"
exit "$rc"
