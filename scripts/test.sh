#!/usr/bin/env bash
# Run the test suites and count.
#
#   test.sh [SUITE…]         on a fresh cluster `test` (all suites by default)
#   test.sh --on dev SUITE…  on the running dev cluster, left running
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

ALL=(lint unit regress docs isolation client npm python quickstart docker)
cluster='test'
if [[ ${1:-} == --on ]]; then cluster=$2; shift 2; fi
if (($#)); then suites=("$@"); else suites=("${ALL[@]}"); fi
for suite in "${suites[@]}"; do
  [[ -f scripts/suites/$suite.sh ]] || die "no suite '$suite'; there are: ${ALL[*]}"
done
wants() { [[ " ${suites[*]} " == *" $1 "* ]]; }

with_lock test
export LC_ALL=C.UTF-8 # we read the runners' output: no translations
logs=$ROOT/.pg/test-logs; rm -rf "$logs"; mkdir -p "$logs"
rows=() passed=0 failed=0

cleanup() {
  local rc=$?
  trap - EXIT
  if [[ $cluster == test ]]; then scripts/cluster.sh test stop 9>&- || :; fi
  exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# record NAME PASSED FAILED SECONDS
record() {
  rows+=("$(printf '%-12s %7d %7d %6d s' "$@")")
  passed=$((passed + $2)) failed=$((failed + $3))
}

# run_suite NAME — a suite tells its counts by `count` (suites/common.sh); one
# that ends badly without having counted a failure counts as one.
run_suite() {
  local name=$1 rc=0 p f ok=0 bad=0 t=$SECONDS
  export FETCHQ_COUNTS=$logs/$name.counts
  : >"$FETCHQ_COUNTS"
  step "suite $name"
  # 9>&-: a daemon that a suite may leave behind must not keep our lock.
  run_logged "suite $name" "$logs/$name.log" bash "scripts/suites/$name.sh" 9>&- || rc=$?
  while read -r p f; do ok=$((ok + p)) bad=$((bad + f)); done <"$FETCHQ_COUNTS"
  if ((rc != 0 && bad == 0)); then warn "suite $name ended with status $rc"; bad=1; fi
  if ((ok + bad == 0)); then warn "suite $name ran no test"; bad=1; fi
  step "suite $name: $ok passed, $bad failed (log: $logs/$name.log)"
  record "$name" "$ok" "$bad" "$((SECONDS - t))"
}

# attempt NAME COMMAND… — a preparation whose failure counts as one failed test.
attempt() {
  local name=$1 t=$SECONDS; shift
  "$@" 9>&- && return
  record "$name" 0 1 "$((SECONDS - t))"
  return 1
}

ready=1
attempt setup scripts/setup.sh || ready=0

# These two build for themselves; `unit` installs a test build, so it comes
# before the release build that all others use.
for suite in lint unit; do
  if wants "$suite" && ((ready)); then run_suite "$suite"; fi
done

others=()
for suite in "${suites[@]}"; do
  case $suite in lint | unit) ;; *) others+=("$suite") ;; esac
done
if ((ready)) && { ((${#others[@]})) || wants unit; }; then
  attempt build scripts/build.sh || ready=0
fi
if ((ready && ${#others[@]})); then
  if [[ $cluster == test ]]; then attempt cluster scripts/cluster.sh test reset || :; fi
  attempt cluster scripts/cluster.sh "$cluster" start || ready=0
fi
if ((ready && ${#others[@]})); then
  load_pg
  load_state
  eval "$(scripts/cluster.sh "$cluster" env)"
  # For suites that start clusters of their own.
  export FETCHQ_PG_BINDIR=$PG_BINDIR FETCHQ_STATE_DIR=$STATE/extra
  if ((EUID == 0)); then export FETCHQ_RUNAS=$SERVER_USER; fi
  rm -rf "${FETCHQ_STATE_DIR:?}"; as_pg_dir "$FETCHQ_STATE_DIR" # (kept after a failure, to look at)
  for suite in "${others[@]}"; do
    # A suite may have killed the server: the next one gets it back.
    scripts/cluster.sh "$cluster" start 9>&- || warn "the $cluster cluster is down"
    run_suite "$suite"
  done
elif ((${#others[@]})); then
  for suite in "${others[@]}"; do warn "suite $suite not run"; record "$suite" 0 1 0; done
fi

if [[ $cluster == test ]]; then scripts/cluster.sh test stop 9>&- || :; fi
step "done"
printf '\n%-12s %7s %7s %8s\n' suite passed failed time
printf '%s\n' "${rows[@]}"
printf '\n%d passed, %d failed\n' "$passed" "$failed"
if ((failed == 0)) && [[ -n ${FETCHQ_STATE_DIR:-} ]]; then rm -rf "${FETCHQ_STATE_DIR:?}"; fi
((failed == 0))
