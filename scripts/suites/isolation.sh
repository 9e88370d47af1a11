#!/usr/bin/env bash
# Compare the output of concurrent sessions, step by step, with the expected output.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

run_pg_regress "$(dirname "$("$PG_CONFIG" --pgxs)")/../test/isolation/pg_isolation_regress" tests/isolation isolation
