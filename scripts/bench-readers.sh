#!/usr/bin/env bash
# Measure what readers of statistics cost: the CPU time of a call, and what ten calls a second leave
# of the cycle of push, lease and drop.
#
#   bench-readers.sh [QUEUES [ROUNDS [SECONDS]]]     100 queues, 6 rounds, 6 seconds
#
# It measures the build of this checkout. To compare two, run it in each of two checkouts.
#   CALLS="queue_stats() status()"   which calls; queue_stats('q1') is of one queue
#   EVENTS="0 10000 100000"          with how many counter events that are not packed
#   ROUNDS=0                         only the CPU time of the calls
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
queues=${1:-100} rounds=${2:-${ROUNDS:-6}} seconds=${3:-6}
calls=${CALLS:-queue_stats() queue_stats(\'q1\') metric_export() status()}
load_server

cluster() { scripts/cluster.sh bench_readers "$@"; }
cluster reset
cleanup() {
  local rc=$?
  trap - EXIT
  cluster stop || :
  rm -rf "$scratch"
  exit "$rc"
}
scratch=$(mktemp -d)
trap cleanup EXIT
export FETCHQ_PG_CONF="synchronous_commit = off
max_connections = 100"
cluster start
eval "$(cluster env)"
psql() { "$PG_BINDIR/psql" -XqAt "$@"; }

step "$queues queues"
for ((i = 1; i <= queues; i += 100)); do
  psql -c "select count(*) from (select fetchq.queue_create('q' || i) from generate_series($i, least($i + 99, $queues)) i) x" >/dev/null
  psql -c "select count(*) from (select fetchq.doc_append('q' || i, '{}') from generate_series($i, least($i + 99, $queues)) i) x" >/dev/null
done
psql -c "vacuum analyze"

# cpu CALL — print the milliseconds of CPU time that a call takes in a session that has made some
# calls before, and that the first call takes.
cpu() {
  local n=$((queues > 1000 ? 10 : 40)) i
  {
    echo "select pg_backend_pid() as pid \\gset"
    echo "\\set t0 \`cut -d ' ' -f 1 /proc/:pid/schedstat\`"
    echo "select count(*) as n from fetchq.$1 \\gset"
    echo "\\set t1 \`cut -d ' ' -f 1 /proc/:pid/schedstat\`"
    for ((i = 0; i < 5; i++)); do echo "select count(*) as n from fetchq.$1 \\gset"; done
    echo "\\set t2 \`cut -d ' ' -f 1 /proc/:pid/schedstat\`"
    for ((i = 0; i < n; i++)); do echo "select count(*) as n from fetchq.$1 \\gset"; done
    echo "\\set t3 \`cut -d ' ' -f 1 /proc/:pid/schedstat\`"
    echo "select round((:t3 - :t2) / $n / 1e6, 2) || ' ms of CPU, the first ' || round((:t1 - :t0) / 1e6, 1) || ' ms'"
  } | psql
}

# The packs of before may have made the log short.
pack() { for _ in 1 2 3; do psql -c "select fetchq.metric_log_pack()" >/dev/null; done; }

for events in ${EVENTS:-0 10000 100000}; do
  pack
  # Events of all queues in turn, in transactions of 100, as a load leaves them.
  psql -c "do \$\$ begin for i in 1..$events / 100 loop perform fetchq.doc_append('q' || (i * 100 + j) % $queues + 1, '{}') from generate_series(1, 100) j; commit; end loop; end \$\$"
  for call in $calls; do
    step "$events events, $call: $(cpu "$call")"
  done
done
((rounds > 0)) || exit 0

# From here on maintenance packs the log, as on a server that people run.
psql -c "alter system set fetchq.background_worker = on" -c "select pg_reload_conf()" >/dev/null
cat >"$scratch/cycle.sql" <<'SQL'
select fetchq.doc_append('q1', '{"to": "somebody@example.com", "text": "about a hundred bytes of payload, as usual"}');
select fetchq.doc_drop('q1', subject, lease) from fetchq.doc_lease('q1', 1);
SQL
for call in $calls; do
  echo "select * from fetchq.$call;" >"$scratch/read.sql"
  ratios=()
  for ((round = 1; round <= rounds; round++)); do
    order="with without"
    if ((round % 2)); then order="without with"; fi
    declare -A tps=()
    for how in $order; do
      if [[ $how == with ]]; then
        "$PG_BINDIR/pgbench" -n -c 1 -R 10 -T "$((seconds + 1))" -f "$scratch/read.sql" >"$scratch/read.out" 2>&1 &
      fi
      tps[$how]=$("$PG_BINDIR/pgbench" -n -M prepared -c 4 -j 2 -T "$seconds" -f "$scratch/cycle.sql" | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
      wait
    done
    ratios+=("$(awk "BEGIN { print ${tps[with]} / ${tps[without]} }")")
    step "$call, round $round of $rounds: cycle with ÷ without = ${ratios[-1]}, $(sed -n 's/latency average = \(.*\)/a read \1/p' "$scratch/read.out")"
  done
  printf '%s\n' "${ratios[@]}" | sort -g | awk -v call="$call" '{ r[NR] = $1 } END { print call ": median of cycle with ÷ without ten calls a second = " (r[int((NR + 1) / 2)] + r[int((NR + 2) / 2)]) / 2 }'
done
