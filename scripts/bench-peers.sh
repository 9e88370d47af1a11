#!/usr/bin/env bash
# Compare the last build of this checkout with the queues that people pick instead, on a throwaway cluster.
#
#   QUICK=1            three minutes instead of 32: does each system work?
#   ONLY="pgmq, SQL"   only systems whose names contain one of these
#   ROUNDS=5           another number of rounds
#   MINUTES=60         another limit of the time; what does not fit is left out, and reported
#   PROCESSES=4        four worker processes of each client instead of one
#   RESUME=FOLDER      continue an interrupted run
#   KEEP=1             leave the server running
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
exec "$ROOT/scripts/bench.sh" --peers
