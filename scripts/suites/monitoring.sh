#!/usr/bin/env bash
# The files of packaging/monitoring, with a real Prometheus that scrapes the console of a server under
# load.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/monitoring

cargo build --profile client -p fetchq-console
FETCHQ_CONSOLE=${CARGO_TARGET_DIR:-$ROOT/target}/client/fetchq; export FETCHQ_CONSOLE
run_unittest tests/monitoring
