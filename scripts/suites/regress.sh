#!/usr/bin/env bash
# Compare the output of SQL scripts with the expected output.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

run_pg_regress "$(dirname "$("$PG_CONFIG" --pgxs)")/../test/regress/pg_regress" tests/pg_regress regress
