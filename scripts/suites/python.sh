#!/usr/bin/env bash
# Test a Python client against the server.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/python
scratch

rc=0
# Use the system's Python, because psycopg comes from apt.
keep "$SCRATCH" /usr/bin/python3 -m unittest discover -v -s tests/python || rc=$?
ran=$(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$SCRATCH" | tail -n 1)
last=$(grep -E '^(OK|FAILED|NO TESTS RAN)' "$SCRATCH" | tail -n 1 || :)
number() { sed -nE "s/.*[( ]$1=([0-9]+).*/\\1/p" <<<"$last" | grep . || echo 0; }
bad=$(($(number failures) + $(number errors) + $(number 'unexpected successes')))
ok=$((${ran:-0} - bad - $(number skipped) - $(number 'expected failures')))
if ((ok < 0)); then ok=0; fi
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$ok" "$bad"
exit "$rc"
