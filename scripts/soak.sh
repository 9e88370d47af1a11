#!/usr/bin/env bash
# Run the stress tests of the engine for a long time, on a cluster of its own: random histories,
# chaos, chaos beside an operator's DDL, crashes under load, and inserts while floors advance. At the end, pg_amcheck checks all
# tables and indexes that the histories have left, and the primary of a cluster of three is killed under
# load, which takes two minutes more (as root, where Patroni, etcd and HAProxy are installed).
#
#   soak.sh [MINUTES]     30 minutes by default, at least 3
#
# FETCHQ_MODEL_SEED=n   begin the histories with this seed
# FETCHQ_NO_PRELOAD=1   run without shared memory
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

minutes=${1:-30}
if [[ ! $minutes =~ ^[0-9]+$ ]] || ((minutes < 3)); then die "soak: MINUTES must be a number of at least 3, not '$minutes'"; fi
load_server
[[ -x $PG_BINDIR/pg_amcheck ]] || die "there is no pg_amcheck in $PG_BINDIR: it comes with PostgreSQL 14 and later"

cleanup() {
  local rc=$?
  trap - EXIT
  scripts/cluster.sh soak stop 9>&- || :
  exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

with_lock soak
scripts/cluster.sh soak reset 9>&-
scripts/cluster.sh soak start 9>&-
eval "$(scripts/cluster.sh soak env)"
# Tests that start clusters of their own use these.
export FETCHQ_PG_BINDIR=$PG_BINDIR FETCHQ_STATE_DIR=$STATE/soak-extra
if ((EUID == 0)); then export FETCHQ_RUNAS=$SERVER_USER; fi
rm -rf "${FETCHQ_STATE_DIR:?}"; as_pg_dir "$FETCHQ_STATE_DIR"

# prove TEST… — run these tests of the client suite, and show their progress.
prove() {
  cargo test --profile client -q -p fetchq-client-tests -- --test-threads=1 --nocapture "$@" 2>&1 9>&- | tee "$STATE/soak.log"
  # A name that matches no test would run none.
  grep -q "^test result: ok. $# passed" "$STATE/soak.log" || die "soak: $* did not run"
}

step "building the tests"
cargo test --profile client -q -p fetchq-client-tests --no-run
total=$((minutes * 60)) # seconds; the five parts take 40, 10, 10, 10 and 30 percent

step "random histories, for $((total * 4 / 10)) s"
FETCHQ_MODEL_SECONDS=$((total * 4 / 10)) prove no_document_is_ever_hidden
step "random histories with memory for a few floors, for $((total / 10)) s"
FETCHQ_MODEL_SECONDS=$((total / 10)) prove no_document_is_hidden_when_memory_is_short

step "chaos, for $((total / 10)) s"
FETCHQ_CHAOS_SECONDS=$((total / 10)) prove chaos::chaos
step "chaos beside an operator and a misbehaving owner, for $((total / 10)) s"
FETCHQ_CHAOS_SECONDS=$((total / 10)) prove chaos::ddl_and_a_misbehaving_owner

step "crashes under load and inserts while floors advance, for $((total * 3 / 10)) s"
end=$((SECONDS + total * 3 / 10)) rounds=0
until ((SECONDS >= end)); do
  prove load_crash:: worker_crash::crashes_under_load inserts_while_a_floor_is_advanced
  rounds=$((rounds + 1))
  step "… $rounds rounds"
done

step "pg_amcheck"
"$PG_BINDIR/pg_amcheck" --all --install-missing --heapallindexed --parent-check --rootdescend --progress
misses=$("$PG_BINDIR/psql" -XAtc 'select floor_misses from fetchq.ready_stats()')
[[ $misses == 0 ]] || die "floor_misses is $misses"
rm -rf "${FETCHQ_STATE_DIR:?}"
if ((EUID == 0)) && type -P patroni etcd haproxy >/dev/null; then
  step "a failover under load"
  scripts/ha.sh --rounds 1 --kinds kill 9>&-
else
  step "no failover: run as root, after scripts/ha/setup.sh"
fi
step "soak: passed after $minutes minutes"
