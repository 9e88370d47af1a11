#!/usr/bin/env bash
# A group of queues moves to another server and back under load, through PgBouncer, while the command
# `fetchq move` and both servers are killed at every step. The servers are in .pg/move.
#
# DOCS=20000 WORKERS=4   the number of documents of before, and of worker processes
# MOVE="…"               more options of tests/move/move.py, such as --only undisturbed
# MOVE_KEEP=1            keep the folder with all logs
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/move/move.py
# libpq settings for another server (PGPORT, PGPASSWORD, …) must not reach these.
for var in "${!PG@}"; do if [[ $var == PG[A-Z]* && $var != PGRX_* ]]; then unset "$var"; fi; done
with_lock move

cargo build --profile client -p fetchq-console
FETCHQ_CONSOLE=${CARGO_TARGET_DIR:-$ROOT/target}/client/fetchq
export FETCHQ_CONSOLE FETCHQ_PG_BINDIR=$PG_BINDIR
if ((EUID == 0)); then export FETCHQ_RUNAS=$SERVER_USER; fi
folder=$STATE/move
scratch

# The unit tests of the crate are counted with the others. With the program beside it, its dependencies have
# the features that they were built with.
unit=0
keep "$SCRATCH" cargo test --profile client -p fetchq-mover -p fetchq-console --lib || unit=$?
sum_cargo "$SCRATCH" "$unit"

# The program ends all that it has started when it is interrupted.
rc=0
keep "$SCRATCH" /usr/bin/python3 tests/move/move.py --folder "$folder" --docs "${DOCS:-20000}" --workers "${WORKERS:-4}" ${MOVE:-} || rc=$?
bad=$(grep -c '^FAILED: ' "$SCRATCH" || :)
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$(grep -c '^ok: ' "$SCRATCH" || :)" "$bad"
if ((rc == 0)) && [[ -z ${MOVE_KEEP:-} ]]; then rm -rf "${folder:?}"; else echo "the servers, their logs and the ledgers are in $folder"; fi
exit "$((rc ? rc : unit))"
