#!/usr/bin/env bash
# How long each page of the console takes with 10,000 queues, and with 10 million documents in one,
# beside one queue with 1,000 documents. It prints a table, and takes less than 10 minutes on a machine
# that does nothing else; the numbers of a busy one say little.
#
#   QUEUES=n      another number of queues (10000)
#   DOCUMENTS=n   another number of documents (10000000)
#   KEEP=1        leave the server running
#
# It measures the last build of this checkout; without one it builds it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_server
with_lock bench-run
cd "$ROOT"
[[ -e $PG_LIBDIR/fetchq.so ]] || scripts/build.sh 9>&-
step "bench-console: building the console"
run_quiet "build of the console" "$ROOT/.pg/build-console.log" cargo build --profile client -p fetchq-console 9>&-

end() {
  if [[ ${KEEP:-0} != 1 ]]; then scripts/cluster.sh pages reset 9>&-; fi
}
trap end EXIT
scripts/cluster.sh pages reset 9>&-
FETCHQ_PG_CONF="shared_buffers = '1GB'
max_wal_size = '8GB'
checkpoint_timeout = '30min'" scripts/cluster.sh pages start 9>&-
eval "$(scripts/cluster.sh pages env)"
export FETCHQ_CONSOLE=${CARGO_TARGET_DIR:-$ROOT/target}/client/fetchq PYTHONDONTWRITEBYTECODE=1
/usr/bin/python3 bench/console_pages.py
