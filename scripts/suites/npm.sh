#!/usr/bin/env bash
# Node's client against the server.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/npm/package-lock.json
scratch
cd tests/npm

npm ci --no-audit --no-fund
rc=0
# (a file that does not exit must not hold up everything)
keep "$SCRATCH" timeout -k 10 400 npm test || rc=$?
# (the TAP reporter prints "# pass 3", the spec reporter "ℹ pass 3")
sum() { sed -nE "s/^(#|ℹ) ($1) ([0-9]+)\$/\\3/p" "$SCRATCH" | awk '{ n += $1 } END { print n + 0 }'; }
ok=$(sum pass) bad=$(sum 'fail|cancelled')
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$ok" "$bad"
exit "$rc"
