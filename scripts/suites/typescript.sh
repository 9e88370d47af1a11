#!/usr/bin/env bash
# Test the TypeScript client: its style, its types, its unit tests, and its tests against the server.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs clients/typescript/package-lock.json
# It builds the client anew, with which the conformance may be running.
if [[ -z ${FETCHQ_LOCKED:-} ]]; then FETCHQ_LOCKED=1 exec flock -o "$ROOT/.pg/typescript.lock" bash "$0"; fi
scratch
cd clients/typescript

conformance/build
one lint npm run --silent lint
one docs npm run --silent docs

# The TAP reporter prints "# pass 3", and the spec reporter prints "ℹ pass 3".
sum() { sed -nE "s/^(#|ℹ) ($1) ([0-9]+)\$/\\3/p" "$SCRATCH" | awk '{ n += $1 } END { print n + 0 }'; }
status=0
run() {
  local rc=0 ok bad
  echo "--- $*"
  # The timeout ends a test file that does not exit.
  keep "$SCRATCH" timeout -k 10 110 npm run --silent "$@" || rc=$?
  ok=$(sum pass) bad=$(sum 'fail|cancelled')
  if ((rc != 0 && bad == 0)); then bad=1; fi
  count "$ok" "$bad" "$(sum skipped)"
  if ((rc != 0)); then status=$rc; fi
}

run test
run test:server
exit "$status"
