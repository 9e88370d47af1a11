#!/usr/bin/env bash
# Make the pictures of the console in docs/images, on the dev server. It takes a minute.
#
#   console-pictures.sh                     those of the docs
#   console-pictures.sh FOLDER [PATTERN]    of every screen, wide and narrow, light and dark, with bad
#                                           names and empty states, to look at after a change;
#                                           PATTERN selects some, such as 'queue-wide'
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
folder=${1:+$(realpath -m "$1")}
cd tests/console
npm ci --no-audit --no-fund >/dev/null
if [[ -n $folder ]]; then
  node pictures.mjs "$folder" "${2:-.}"
else
  node docs-pictures.mjs "$ROOT/docs/images"
fi
