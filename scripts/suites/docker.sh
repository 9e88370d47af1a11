#!/usr/bin/env bash
# The files for Docker against the checkout (there is no Docker engine in CI).
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

one docker scripts/check-docker.sh
