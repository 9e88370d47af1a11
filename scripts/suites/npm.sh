#!/usr/bin/env bash
# Test the npm clients against the server, first without and then with the background worker.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/npm/package-lock.json
scratch
cd tests/npm

npm ci --no-audit --no-fund

# fetchq 4 as an extension: its install script is the SQL of the client.
export FETCHQ_EXTENSION_DIR=$PG_SHAREDIR/extension FETCHQ_PG_BINDIR=$PG_BINDIR
old=$FETCHQ_EXTENSION_DIR/fetchq--4.0.2.sql
trap 'rm -f "$old" "$SCRATCH"' EXIT
install -m 644 node_modules/fetchq-420/lib/functions/client/client.init.sql "$old"

# The TAP reporter prints "# pass 3", and the spec reporter prints "ℹ pass 3".
sum() { sed -nE "s/^(#|ℹ) ($1) ([0-9]+)\$/\\3/p" "$SCRATCH" | awk '{ n += $1 } END { print n + 0 }'; }
status=0
run() {
  local rc=0 ok bad
  # The timeout ends a test file that does not exit.
  keep "$SCRATCH" timeout -k 10 400 npm test || rc=$?
  ok=$(sum pass) bad=$(sum 'fail|cancelled')
  if ((rc != 0 && bad == 0)); then bad=1; fi
  count "$ok" "$bad"
  if ((rc != 0)); then status=$rc; fi
}
worker() {
  "$PG_BINDIR/psql" -Xq -d postgres -c "alter system set fetchq.background_worker = $1" -c 'select pg_reload_conf()' >/dev/null
}

run
if [[ ${FETCHQ_NO_PRELOAD:-} != 1 ]]; then
  echo '--- with the background worker'
  worker on
  FETCHQ_WORKER=on run
  worker default
fi
exit "$status"
