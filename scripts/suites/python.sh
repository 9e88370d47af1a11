#!/usr/bin/env bash
# Test a Python client against the server.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/python
run_unittest tests/python
