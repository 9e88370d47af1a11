#!/usr/bin/env bash
# Kill a server in the middle of work with late leases, again and again: each document has its effect
# once, whatever leases were lost.
#
#   late-crashes.sh [ROUNDS [DOCUMENTS]]     20 rounds of 50,000 documents by default
#
# Four clients settle documents in twenties, each with a row of the user's in the same transaction, whose
# key is the document: an effect that is repeated fails. In a third of the documents, all processes of the
# server are killed with SIGKILL. What is left is done after the restart.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
rounds=${1:-20} documents=${2:-50000}
[[ $rounds =~ ^[1-9][0-9]*$ && $documents =~ ^[1-9][0-9]{3,6}$ ]] || die "late-crashes.sh [ROUNDS [DOCUMENTS]], with 1,000 to 9,999,999 documents"
load_server
with_lock late_crashes
server() { scripts/cluster.sh late_crashes "$@" 9>&-; }
scratch=$(mktemp -d)
cleanup() {
  local rc=$?
  trap - EXIT
  server stop || :
  rm -rf "$scratch"
  exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Where transactions can be prepared, no lease is late.
export FETCHQ_PG_CONF="fetchq.background_worker = on
max_prepared_transactions = 0
fetchq.late_lease_slots = 16384
fetchq.lease_write_delay = 1s
fetchq.synchronous_settling = off"
cat >"$scratch/work.sql" <<'SQL'
begin;
insert into done (subject) select jsonb_array_elements(:settlements::jsonb) ->> 'subject';
select coalesce(jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'drop')), '[]')::text as settlements,
    case when count(*) = 0 then 1 else 0 end as is_empty
from fetchq.docs_next('q', :settlements::jsonb, 20, '5s') \gset
commit;
\if :is_empty
\sleep 100 ms
\endif
SQL
sql() { "$PG_BINDIR/psql" -XAtq -v ON_ERROR_STOP=1 "$@"; }
done_now() { sql -c 'select count(*) from done'; }
misses() { sql -c 'select floor_misses from fetchq.ready_stats()'; }
# work SECONDS — the clients work, until they have no time left or the server is gone. A client ends with
# the first ERROR.
work() { "$PG_BINDIR/pgbench" -n -M prepared -c 4 -j 2 -T "$1" -D "settlements=[]" -f "$scratch/work.sql" >"$scratch/log" 2>&1 || :; }
# no_error ROUND — no client has failed, but for the loss of its server.
no_error() {
  if grep -a 'ERROR:' "$scratch/log" | grep -avE 'terminating connection|server closed the connection|the database system is'; then die "round $1: a client has failed"; fi
}
# kill_all — kill the postmaster and its children. They have other process groups.
kill_all() {
  local postmaster children
  postmaster=$(as_pg head -1 "$FETCHQ_PGDATA/postmaster.pid")
  children=$(pgrep -P "$postmaster")
  # One that has ended meanwhile is as good.
  # shellcheck disable=SC2086
  as_pg kill -9 "$postmaster" $children 2>/dev/null || :
  while kill -0 "$postmaster" 2>/dev/null; do nap 0.05; done
}

server reset
lost=0
for ((round = 1; round <= rounds; round++)); do
  # Leases are late again after a clean restart; for ten minutes after a crash they are not.
  server stop
  server start
  eval "$(server env)"
  if ((round == 1)); then
    sql -c "select fetchq.queue_create('q')" -c "create table done (subject text primary key)" >/dev/null
  fi
  sql -c "select count(*) from fetchq.doc_put_many('q', (select jsonb_agg(jsonb_build_object('subject', 'r$round-' || n)) from generate_series(1, $documents) n))" >/dev/null
  before=$(((round - 1) * documents)) all=$((round * documents))
  work 60 &
  worker=$!
  until (($(done_now) >= before + documents / 3)); do
    nap 0.05
    kill -0 "$worker" 2>/dev/null || { cat "$scratch/log"; die "round $round: the clients ended before a third was done"; }
  done
  # Leases that are only in memory, not the documents that running transactions change.
  late=$(sql -c 'select count(*) from fetchq_data.q__docs where fetchq.late_lease(tableoid::bigint, subject::text, seq, created_at) is not null')
  missed=$(misses)
  kill_all
  wait "$worker" || :
  no_error "$round"
  ((late > 0)) || die "round $round: no lease was late"
  [[ $missed == 0 ]] || die "round $round: floor_misses is $missed before the crash"
  lost=$((lost + late))
  server start
  killed=$(($(done_now) - before))
  ((killed > 0 && killed < documents)) || die "round $round: $killed of $documents documents were done at the crash"
  # Leases that were written last for five seconds. The last settlements of a client are lost with it.
  for ((tries = 0; tries < 20; tries++)); do
    work 3
    no_error "$round"
    left=$(sql -c 'select count(*) from fetchq_data.q__docs')
    if ((left == 0)); then break; fi
  done
  ((left == 0)) || die "round $round: $left documents are left"
  (($(done_now) == all)) || die "round $round: $(done_now) of $all documents have an effect"
  wrong=$(sql -c "select string_agg(c.metric || ' is ' || coalesce(e.value, 0) || ' instead of ' || c.n, ', ')
    from (values ('cnt', 0), ('pln', 0), ('pnd', 0), ('act', 0), ('kll', 0), ('drp', $all), ('ent', $all)) c (metric, n)
    left join fetchq.metrics_exact e on e.queue = 'q' and e.metric = c.metric where coalesce(e.value, 0) <> c.n")
  [[ -z $wrong ]] || die "round $round: wrong counters: $wrong"
  [[ $(misses) == 0 ]] || die "round $round: floor_misses is not 0 after the crash"
  step "round $round of $rounds: killed after $killed of $documents documents, $late leases were late; all are done once"
done
step "late-crashes: passed: $((rounds * documents)) documents, $rounds crashes, some $lost late leases were lost"
