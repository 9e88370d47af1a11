#!/usr/bin/env bash
# Stop the servers of this checkout, remove their data, and remove everything that was built.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
if [[ -d .pg ]]; then
  scripts/console.sh stop
  load_state
  # Every server has a file `port`.
  for file in "$STATE"/*/port; do
    name=${file%/port}
    if [[ -e $file ]]; then scripts/cluster.sh "${name##*/}" reset; fi
  done
  if [[ $STATE != "$ROOT/.pg" ]]; then rm -rf "${STATE:?}"; fi
fi
rm -rf .pg target dist tests/npm/node_modules tests/console/node_modules bench/peers/node_modules
