#!/usr/bin/env bash
# fetchq beside hand-written SQL, in one run, on a throwaway cluster: alternating, so
# that both meet the same machine. Prints the medians and their ratio as Markdown.
#
#   bench/compare.sh [ROUNDS [SECONDS]]     3 rounds of 8 seconds by default
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3} seconds=${2:-8}
scripts/cluster.sh bench start >&2
trap 'scripts/cluster.sh bench reset >&2' EXIT
eval "$(scripts/cluster.sh bench env)"
export PGOPTIONS='-c synchronous_commit=off'
work=$(mktemp -d); trap 'rm -rf "$work"; scripts/cluster.sh bench reset >&2' EXIT

payload='{"to": "somebody@example.com", "text": "0123456789012345678901234567890123456789012345678901234567890123456789"}'
cat >"$work/push_bare.sql" <<SQL
insert into bare (payload) values ('$payload');
SQL
cat >"$work/push_fetchq.sql" <<SQL
select fetchq.doc_append('bench', '$payload');
SQL
cat >"$work/cycle_bare.sql" <<'SQL'
update bare set status = 2, attempts = attempts + 1, next_iteration = now() + interval '5m' where ctid = any (array(select ctid from bare where status = 1 and next_iteration <= now() order by next_iteration, id limit 1 for update skip locked)) returning id \gset
delete from bare where id = :id;
SQL
cat >"$work/cycle_fetchq.sql" <<'SQL'
select subject from fetchq.doc_pick('bench', 0, 1, '5m') \gset
select fetchq.doc_drop('bench', :subject);
SQL
cat >"$work/poll_bare.sql" <<'SQL'
select 1;
SQL
cat >"$work/poll_fetchq.sql" <<'SQL'
select subject from fetchq.doc_pick('idle');
SQL

# Fresh tables for each measurement, with documents enough for the cycles.
prepare() {
  psql -qX -v ON_ERROR_STOP=1 >/dev/null 2>&1 <<SQL
select fetchq.queue_drop('bench'); select fetchq.queue_create('bench'); select fetchq.queue_create('idle');
drop table if exists bare;
create table bare (id bigint generated always as identity primary key, next_iteration timestamptz not null default now(),
    status int not null default 1, attempts int not null default 0, payload jsonb);
create index on bare (next_iteration, id) where status = 1;
insert into bare (payload) select '$payload' from generate_series(1, 300000);
insert into fetchq_data.bench__docs (subject, status, payload) select 's' || n, 1, '$payload' from generate_series(1, 300000) n;
vacuum analyze bare; vacuum analyze fetchq_data.bench__docs;
SQL
}

measure() { # SCRIPT
  pgbench -n -M prepared -c 4 -j 2 -T "$seconds" -f "$work/$1.sql" 2>/dev/null | sed -nE 's/^tps = ([0-9]+).*/\1/p'
}

for ((round = 1; round <= rounds; round++)); do
  for scenario in push cycle poll; do
    prepare
    for system in bare fetchq; do
      tps=$(measure "${scenario}_$system")
      echo "$tps" >>"$work/$scenario.$system"
      echo "round $round of $rounds: $scenario $system: $tps/s" >&2
    done
  done
done

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
echo "| 4 clients, $rounds rounds of $seconds s | hand-written /s | fetchq /s | fetchq ÷ hand-written |"
echo "|---|---|---|---|"
for scenario in push cycle poll; do
  b=$(median "$work/$scenario.bare") f=$(median "$work/$scenario.fetchq")
  case $scenario in
    push) what='push 1 (INSERT)' ;; cycle) what='pick 1, drop 1 (UPDATE … SKIP LOCKED, DELETE)' ;; *) what='poll of an empty queue (`SELECT 1`)' ;;
  esac
  echo "| $what | $b | $f | $(awk "BEGIN { printf \"%.2f\", $f / $b }") |"
done
