#!/usr/bin/env bash
# The clients in clients/ against the scenarios that all of them must pass: tests/conformance. Each scenario is
# a test for each adapter. The driver starts servers of its own.
#
#   conformance.sh --compile    only build the driver
#
# FETCHQ_CLIENTS=folder       the folder of the clients
# MINUTES=n                   duration of the scenarios of chaos, which is 15 seconds otherwise
# CONFORMANCE="--scenario p09"   more options of tests/conformance/run
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/conformance/adapters

if [[ ${1:-} == --compile ]]; then exec cargo build --profile client -p fetchq-conformance; fi
clients=${FETCHQ_CLIENTS:-$ROOT/clients}
export FETCHQ_STATE_DIR=$STATE/conformance
export FETCHQ_LOGS=$ROOT/.pg/conformance-logs # of each scenario; they are kept

# The adapters of a folder are built once.
while read -r folder; do
  if [[ -x $clients/$folder/conformance/build ]]; then one "the client in $folder is built" flock -o "$ROOT/.pg/typescript.lock" "$clients/$folder/conformance/build"; fi
done < <(awk '!/^#/ && NF { if (!seen[$2]++) print $2 }' tests/conformance/adapters)

scratch
rc=0
# shellcheck disable=SC2086
keep "$SCRATCH" flock -o "$ROOT/.pg/typescript.lock" tests/conformance/run ${CONFORMANCE:-} || rc=$?
bad=$(grep -c '^FAILED: ' "$SCRATCH" || :)
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$(grep -c '^ok: ' "$SCRATCH" || :)" "$bad" "$(grep -c '^skipped: ' "$SCRATCH" || :)"
if ((rc == 0)); then rm -rf "$FETCHQ_STATE_DIR"; fi
echo "the logs of the scenarios are in $FETCHQ_LOGS"
exit "$rc"
