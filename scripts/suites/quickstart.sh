#!/usr/bin/env bash
# Run the quick start of the README as a user runs it.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs examples/quickstart/run.sh

# Every machine that can build the extension has this folder. It has some hundreds of files.
one quickstart bash examples/quickstart/run.sh /usr/include/linux
