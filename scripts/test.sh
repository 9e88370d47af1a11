#!/usr/bin/env bash
# Run the test suites and count the tests.
#
#   test.sh [SUITE…]         on fresh clusters, one for each suite; all suites by default
#   test.sh --on dev SUITE…  on the dev cluster, which is left running
#
# Two suites run only when they are named: `upgrade` needs two PostgreSQL installations, and `image`
# needs Docker or podman, and minutes to build the image.
#
# JOBS=n    number of suites that run at once, on their own servers; 2 by default
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

ALL=(lint unit regress docs isolation client conformance npm typescript python python_client rust_client console monitoring move quickstart docker versions recovery)
fresh=1
if [[ ${1:-} == --on ]]; then fresh=0 dev=$2; shift 2; fi
if (($#)); then suites=("$@"); else suites=("${ALL[@]}"); fi
for suite in "${suites[@]}"; do
  [[ -f scripts/suites/$suite.sh ]] || die "there is no suite '$suite'; the suites are: ${ALL[*]} upgrade image"
done
wants() { [[ " ${suites[*]} " == *" $1 "* ]]; }
JOBS=${JOBS:-2}
[[ $JOBS =~ ^[1-9][0-9]*$ ]] || die "JOBS must be a number of at least 1, not '$JOBS'"
# There is one dev cluster, so its suites run one after the other.
if ((!fresh)); then JOBS=1; fi
export JOBS

with_lock test
export LC_ALL=C.UTF-8 # This script reads the output of the test runners, so it must be English.
logs=$ROOT/.pg/test-logs; rm -rf "$logs"; mkdir -p "$logs"
declare -A row=() job=()
passed=0 failed=0

cleanup() {
  local rc=$? pid
  trap - EXIT
  for pid in "${job[@]}"; do kill_tree "$pid"; done
  stop_servers
  exit "$rc"
}
stop_servers() {
  local file name
  for file in "${STATE:-$ROOT/.pg}"/test_*/port; do
    name=${file%/port} name=${name##*/}
    if [[ $name != 'test_*' ]]; then scripts/cluster.sh "$name" stop 9>&- || :; fi
  done
}
# kill_tree PID — end a process and all processes that it has started.
kill_tree() {
  local child
  for child in $(pgrep -P "$1"); do kill_tree "$child"; done
  kill "$1" 2>/dev/null || :
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# record NAME PASSED FAILED SECONDS [SKIPPED] — add a row to the summary.
record() {
  row[$1]=$(printf '%-12s %7d %7d %6d s' "${@:1:4}")
  if ((${5:-0})); then row[$1]+=", $5 skipped (see its log)"; fi
  passed=$((passed + $2)) failed=$((failed + $3))
  echo "$1 $2 $3 ${5:-0} $4" >>"$logs/summary" # scripts/matrix.sh reads this.
}

# suite NAME — run a suite on a server of its own.
suite() {
  local name=$1 cluster=${dev:-test_$1}
  export FETCHQ_COUNTS=$logs/$name.counts FETCHQ_CLUSTER=$cluster
  : >"$FETCHQ_COUNTS"
  case $name in
    lint | unit | docker | upgrade | image | versions | recovery | move | conformance) ;;
    *)
      if ((fresh)); then scripts/cluster.sh "$cluster" reset || return; fi
      # These suites do not test durability. Tests of durability have clusters of their own.
      if ((fresh)); then export FETCHQ_PG_CONF='fsync = off'; fi
      scripts/cluster.sh "$cluster" start || return
      eval "$(scripts/cluster.sh "$cluster" env)"
      unset FETCHQ_PG_CONF
      # Tests that start clusters of their own use these. The files of a failed run are kept.
      export FETCHQ_PG_BINDIR=$PG_BINDIR FETCHQ_STATE_DIR=$STATE/extra_$name
      if ((EUID == 0)); then export FETCHQ_RUNAS=$SERVER_USER; fi
      rm -rf "${FETCHQ_STATE_DIR:?}"; as_pg_dir "$FETCHQ_STATE_DIR"
      ;;
  esac
  local rc=0
  bash "scripts/suites/$name.sh" || rc=$?
  if [[ -n ${FETCHQ_STATE_DIR:-} ]]; then
    if ((rc == 0)); then rm -rf "${FETCHQ_STATE_DIR:?}"; fi
    if ((fresh)); then scripts/cluster.sh "$cluster" stop || :; fi
  fi
  return "$rc"
}

# failures LOG — the first lines with which the test runners name what has failed.
failures() {
  { grep -aE '^(FAILED:? |FAIL: |ERROR: test|not ok )|^(test|    ) .* \.\.\. +FAILED|^ *✖ ' "$1" || :; } | cut -c 1-200 | head -n 8
}

# finish NAME STATUS SECONDS — read the counts that the suite has written by `count` of
# suites/common.sh. A suite that fails without having counted a failure counts as one failure.
finish() {
  local name=$1 rc=$2 p f s ok=0 bad=0 skipped=0
  while read -r p f s; do ok=$((ok + p)) bad=$((bad + f)) skipped=$((skipped + ${s:-0})); done <"$logs/$name.counts"
  if ((rc != 0 && bad == 0)); then warn "suite $name ended with status $rc"; bad=1; fi
  if ((ok + bad + skipped == 0)); then warn "suite $name ran no test"; bad=1; fi
  step "suite $name: $ok passed, $bad failed in $3 s (log: $logs/$name.log)"
  if ((bad)); then failures "$logs/$name.log" | sed "s/^/$name: /" >>"$logs/failures"; fi
  record "$name" "$ok" "$bad" "$3" "$skipped"
}

# run_suite NAME — run a suite, and show its output at once.
run_suite() {
  local rc=0 t=$SECONDS
  step "suite $1"
  # 9>&-: a process that a suite leaves behind must not keep the lock of this script.
  run_logged "suite $1" "$logs/$1.log" suite "$1" 9>&- || rc=$?
  finish "$1" "$rc" "$((SECONDS - t))"
}

# run_suites NAME… — run JOBS suites at once, and show the output of each when it has ended.
run_suites() {
  local waiting=("$@") name rc beat=$SECONDS
  local -A began=()
  while ((${#waiting[@]} || ${#job[@]})); do
    while ((${#waiting[@]} && ${#job[@]} < JOBS)); do
      name=${waiting[0]} waiting=("${waiting[@]:1}") began[$name]=$SECONDS
      step "suite $name starts (log: $logs/$name.log)"
      : >"$logs/$name.log"
      suite "$name" </dev/null >"$logs/$name.log" 2>&1 9>&- &
      job[$name]=$!
    done
    nap 0.5
    for name in "${!job[@]}"; do
      if kill -0 "${job[$name]}" 2>/dev/null; then continue; fi
      rc=0; wait "${job[$name]}" || rc=$?
      unset "job[$name]"
      printf '\n'; step "suite $name:"
      cat "$logs/$name.log"
      finish "$name" "$rc" "$((SECONDS - began[$name]))"
      beat=$SECONDS
    done
    if ((SECONDS - beat >= 15)); then
      for name in "${!job[@]}"; do step "… $name: $(grep '[[:alpha:]]' "$logs/$name.log" | tail -n 1 | cut -c 1-120 || :)"; done
      beat=$SECONDS
    fi
  done
}

# attempt NAME COMMAND… — run a preparation. Its failure counts as one failed test.
attempt() {
  local name=$1 t=$SECONDS; shift
  "$@" 9>&- && return
  record "$name" 0 1 "$((SECONDS - t))"
  return 1
}

# compile — compile what the suites after `unit` need, while `lint` and `unit` run.
compile() {
  scripts/build.sh --compile || return
  if wants client; then scripts/suites/client.sh --compile || return; fi
  if wants conformance; then scripts/suites/conformance.sh --compile || return; fi
  if wants console; then scripts/suites/console.sh --compile; fi
}

ready=1
packages=--tests
if wants console; then packages=--browser; fi
attempt setup scripts/setup.sh "$packages" || ready=0

# These suites do not test the library that is installed here, so it is not built for them.
installed=0
for suite in "${suites[@]}"; do case $suite in lint | unit | docker | image) ;; *) installed=1 ;; esac; done

first=() others=()
for suite in "${suites[@]}"; do
  case $suite in lint | unit) first+=("$suite") ;; *) others+=("$suite") ;; esac
done

# `lint` and `unit` have their own builds, in debug mode. The release build of all other suites is
# compiled meanwhile.
if ((ready && ${#first[@]})); then
  if ((JOBS > 1 && installed)); then
    compile </dev/null >"$logs/compile.log" 2>&1 9>&- &
    job[compile]=$!
  fi
  for suite in lint unit; do
    if wants "$suite"; then run_suite "$suite"; fi
  done
fi
if [[ -n ${job[compile]:-} ]]; then
  SHOW=1 heartbeat build "$logs/compile.log" 9>&- & beat=$!
  rc=0; wait "${job[compile]}" || rc=$?
  unset 'job[compile]'
  kill "$beat" 2>/dev/null || :
  wait "$beat" 2>/dev/null || :
  # The build that follows shows the error again.
  if ((rc)); then warn "the build in the background failed: $logs/compile.log"; fi
fi
if ((ready && installed)); then
  attempt build scripts/build.sh || ready=0
fi

if ((ready && ${#others[@]})); then
  load_server
  if ((JOBS == 1 || ${#others[@]} == 1)); then
    for suite in "${others[@]}"; do run_suite "$suite"; done
  else
    # The longest suites run first.
    order=()
    for suite in client conformance npm console typescript python_client rust_client "${others[@]}"; do
      if wants "$suite" && [[ " ${order[*]} " != *" $suite "* ]]; then order+=("$suite"); fi
    done
    run_suites "${order[@]}"
  fi
elif ((${#others[@]})); then
  for suite in "${others[@]}"; do warn "suite $suite did not run"; record "$suite" 0 1 0; done
fi

if ((fresh)); then stop_servers; fi
step "done"
printf '\n%-12s %7s %7s %8s\n' suite passed failed time
for name in setup build "${suites[@]}"; do
  if [[ -n ${row[$name]:-} ]]; then echo "${row[$name]}"; fi
done
# The end of the output alone says what has failed.
if [[ -s $logs/failures ]]; then echo; cat "$logs/failures"; fi
printf '\n%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
