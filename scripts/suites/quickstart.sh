#!/usr/bin/env bash
# The quickstart of the README, as a user would run it.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs examples/quickstart/run.sh

# (some hundreds of files, on every machine that can build the extension)
one quickstart bash examples/quickstart/run.sh /usr/include/linux
