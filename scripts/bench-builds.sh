#!/usr/bin/env bash
# Compare two builds of fetchq in alternating rounds of one run, to see what a change costs.
#
#   bench-builds.sh CHECKOUT_BEFORE CHECKOUT_AFTER [ROUNDS [SECONDS]]
#
# Each argument is a checkout, such as one of `git worktree add`, where `make build` has run.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
(($# >= 2)) || die "bench-builds.sh CHECKOUT_BEFORE CHECKOUT_AFTER [ROUNDS [SECONDS]]"
declare -A checkout=([before]=$(realpath "$1") [after]=$(realpath "$2"))
[[ ${checkout[before]} != "${checkout[after]}" ]] || die "before and after are the same checkout"
rounds=${3:-6} seconds=${4:-8}
load_server
cluster() { "${checkout[$1]}/scripts/cluster.sh" bench_builds "${@:2}"; }

for n in before after; do cluster "$n" reset; done
cleanup() {
  local rc=$?
  trap - EXIT
  for n in before after; do cluster "$n" stop || :; done
  exit "$rc"
}
trap cleanup EXIT
scratch=$(mktemp -d)
cat >"$scratch/cycle.sql" <<'SQL'
select fetchq.doc_append('q', '{"to": "somebody@example.com", "subject": "hello", "text": "about a hundred bytes of payload, as usual"}');
select fetchq.doc_drop('q', subject) from fetchq.doc_pick('q', 0, 1, '5m');
SQL
cat >"$scratch/poll.sql" <<'SQL'
select subject from fetchq.doc_pick('q', 0, 1, '5m');
SQL
for n in before after; do
  export FETCHQ_PG_CONF="synchronous_commit = off"
  cluster "$n" start
  cluster "$n" psql -XqAtc "select fetchq.queue_create('q')" >/dev/null
done

for what in cycle poll; do
  ratios=()
  for ((round = 1; round <= rounds; round++)); do
    order="before after"
    if ((round % 2)); then order="after before"; fi
    for n in $order; do
      eval "$(cluster "$n" env)"
      tps=$("$PG_BINDIR/pgbench" -n -M prepared -c 4 -j 2 -T "$seconds" -f "$scratch/$what.sql" | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
      if [[ $n == before ]]; then a=$tps; else b=$tps; fi
    done
    ratios+=("$(awk "BEGIN { print $b / $a }")")
    step "$what, round $round of $rounds: after ÷ before = ${ratios[-1]}"
  done
  printf '%s\n' "${ratios[@]}" | sort -g | awk -v what="$what" '{ r[NR] = $1 } END { print what ": median of after ÷ before = " (r[int((NR + 1) / 2)] + r[int((NR + 2) / 2)]) / 2 }'
done
