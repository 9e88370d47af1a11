#!/usr/bin/env bash
# Check the files for Docker against the checkout. CI has no Docker engine.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

one docker scripts/check-docker.sh
