#!/usr/bin/env bash
# Test clients/python: format, lint, types, and its tests against the server.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs clients/python/pyproject.toml
scratch
clients/python/conformance/build
bin=$ROOT/.pg/python-client/bin
cd clients/python

one ruff-format "$bin/ruff" format --check .
one ruff "$bin/ruff" check .
one mypy "$bin/mypy"
one pyright "$bin/pyright" --pythonpath "$bin/python"

rc=0
# The timeout ends tests that hang.
keep "$SCRATCH" timeout -k 10 300 "$bin/python" -m pytest -q --durations=10 -p no:cacheprovider || rc=$?
number() { tail -n 1 "$SCRATCH" | sed -nE "s/(.*[ =])?([0-9]+) $1.*/\\2/p" | grep . || echo 0; }
bad=$(($(number failed) + $(number 'errors?')))
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$(number passed)" "$bad" "$(number skipped)"
exit "$rc"
