#!/usr/bin/env bash
# Kill, freeze and cut off the primary of a cluster of three nodes under load, and check what is left.
# The nodes are network namespaces of this machine with etcd, Patroni and PostgreSQL; tests/ha has the
# program and the configuration. Needs root.
#
#   ha.sh [OPTION…]     the options of tests/ha/failover.py: --rounds N, --kinds kill,freeze,cut,
#                       --async, --synchronous-leases, --dsn haproxy|hosts, --report FILE
#
# HA_KEEP=1   keep the folder with all logs, which is .pg/ha
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
((EUID == 0)) || die "ha needs root: it makes network namespaces"
# libpq settings for another server (PGPORT, PGPASSWORD, …) must not reach these.
for var in "${!PG@}"; do if [[ $var == PG[A-Z]* && $var != PGRX_* ]]; then unset "$var"; fi; done
load_server
[[ -e $PG_LIBDIR/fetchq.so ]] || die "$PG_LIBDIR/fetchq.so is missing: run 'make build' first"
with_lock ha
folder=$STATE/ha

# It removes the processes and the namespaces itself when it is interrupted, and those that an earlier one
# has left when it was killed.
rc=0
# The worker of examples/ runs with the package of this checkout.
clients/python/conformance/build
export FETCHQ_PYTHON=$ROOT/.pg/python-client/bin/python
FETCHQ_PG_BINDIR=$PG_BINDIR /usr/bin/python3 tests/ha/failover.py --folder "$folder" "$@" 9>&- & program=$!
trap 'kill -TERM "$program" 2>/dev/null' INT TERM HUP
wait "$program" || rc=$?
while kill -0 "$program" 2>/dev/null; do wait "$program" || rc=$?; done
if [[ -z ${HA_KEEP:-} && $rc == 0 ]]; then rm -rf "${folder:?}"; fi
exit "$rc"
