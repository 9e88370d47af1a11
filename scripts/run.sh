#!/usr/bin/env bash
# Set up, build, start the dev server, and run the quickstart over FOLDER, and start the
# console.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
FOLDER=${1:-/usr/share/doc}
[[ -d $FOLDER ]] || die "there is no folder $FOLDER"
FOLDER=$(realpath "$FOLDER") # before this script changes to the checkout
cd "$ROOT"

scripts/setup.sh
scripts/build.sh
scripts/cluster.sh dev start
eval "$(scripts/cluster.sh dev env)"
step "quickstart over $FOLDER"
bash examples/quickstart/run.sh "$FOLDER"
scripts/console.sh start
scripts/connect.sh
