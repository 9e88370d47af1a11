#!/usr/bin/env bash
# Runs worker.sql until SIGTERM. Then the current document is finished, or it is handed back
# when that takes more than GRACE seconds (25).
#
#   psql-worker.sh QUEUE [NAME]        DATABASE_URL names the server
set -uo pipefail
queue=${1:?usage: psql-worker.sh QUEUE [NAME]} name=${2:-psql-$$}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

ending=0
finish() {
  ((ending)) && return
  ending=1
  psql -Xq "$DATABASE_URL" -v name="$name" <<<"select fetchq.worker_stop(:'name') \g /dev/null"
  # On SIGINT, psql cancels the call.
  (sleep "${GRACE:-25}"; kill -INT "$worker") >/dev/null 2>&1 &
  timer=$!
}
trap finish TERM INT

# psql gets its own process group, so that Ctrl-C reaches this script alone.
# A background job ignores SIGINT unless job control is on.
set -m
psql -X "$DATABASE_URL" -v queue="$queue" -v name="$name" -f "$here/worker.sql" &
worker=$!
set +m
# A signal interrupts `wait`, so wait again while psql runs.
while
  wait "$worker"
  status=$?
  kill -0 "$worker" 2>/dev/null
do :; done
if ((ending)); then
  kill "$timer" 2>/dev/null
  exit 0
fi
exit "$status"
