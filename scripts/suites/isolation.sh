#!/usr/bin/env bash
# Compare the output of concurrent sessions, step by step, with the expected output.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

# The runner of another installation does, too: it is a client. PostgreSQL 13 does not install it.
runner=${ISOLATION_REGRESS:-$(dirname "$("$PG_CONFIG" --pgxs)")/../test/isolation/pg_isolation_regress}
# Here the tables belong to a role that is no superuser, as the security guide recommends.
DATA_OWNER=fetchq_data_owner run_pg_regress "$runner" tests/isolation isolation
