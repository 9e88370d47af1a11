#!/usr/bin/env bash
# Make the pictures of the console in docs/images, on the dev server. It takes a minute.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
scripts/setup.sh --browser
scripts/build.sh
scripts/cluster.sh dev start
scripts/suites/console.sh --compile
eval "$(scripts/cluster.sh dev env)"
export FETCHQ_CONSOLE=${CARGO_TARGET_DIR:-$ROOT/target}/client/fetchq
cd tests/console
npm ci --no-audit --no-fund >/dev/null
node docs-pictures.mjs "$ROOT/docs/images"
