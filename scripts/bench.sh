#!/usr/bin/env bash
# Benchmark the last build of this checkout beside other systems, on a throwaway cluster.
#
#   QUICK=1            two minutes instead of about 75
#   ONLY="push cycle*" only these scenarios
#   LATE=2s            with late leases, and the scenarios in which they matter
#   SYSTEMS="bare …"   only these folders of bench/systems
#   ROUNDS, LENGTH     another number of rounds, another length of loads (seconds)
#   FILL=2             fill queues with twice as many documents, for a fast machine
#   RESUME=FOLDER      continue an interrupted run
#   KEEP=1             leave the server running
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_server
with_lock bench-run
runner=bench/run.py
if [[ ${1:-} == --peers ]]; then runner=bench/run_peers.py; fi
cd "$ROOT"

[[ -x /usr/bin/python3 ]] || die "no /usr/bin/python3: run 'make setup'"
[[ -e $PG_LIBDIR/fetchq.so ]] || scripts/build.sh 9>&-

# The plots need a package. A run without them must not fail.
if ! /usr/bin/python3 -c 'import matplotlib' 2>/dev/null && command -v apt-get >/dev/null && { [[ -z $SUDO ]] || command -v sudo >/dev/null; }; then
  step "bench: installing python3-matplotlib for the plots"
  apt_get() { $SUDO env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
  log=$ROOT/.pg/bench-apt.log
  run_quiet "apt-get update" "$log" apt_get update || :
  run_quiet "apt-get install" "$log" apt_get install -y --no-install-recommends python3-matplotlib || warn "matplotlib could not be installed: the report has no plots"
fi

export PYTHONDONTWRITEBYTECODE=1 FETCHQ_PG_BINDIR=$PG_BINDIR
exec /usr/bin/python3 "$runner"
