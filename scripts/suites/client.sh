#!/usr/bin/env bash
# Tests with a real client against the server: the workspace member tests/client.
#
#   client.sh --compile    only build the tests
#
# On one server the tests run one after the other, because some of them read all sessions, and some
# change the settings of the server. Therefore JOBS servers share the tests, one file at a time.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/client/Cargo.toml

compile() {
  cargo build --profile client -p fetchq-console
  cargo test --profile client -p fetchq-client-tests --no-run
}
if [[ ${1:-} == --compile ]]; then compile; exit; fi

servers=${JOBS:-1} work=$(mktemp -d)
[[ ${FETCHQ_CLUSTER:-} == test_client ]] || servers=1
declare -A job=()
end() {
  local rc=$? n
  trap - EXIT
  for n in "${!job[@]}"; do kill "${job[$n]}" 2>/dev/null || :; done
  for ((n = 2; n <= servers; n++)); do scripts/cluster.sh "test_client$n" stop || :; done
  rm -rf "$work"
  exit "$rc"
}
trap end EXIT

keep "$work/compile" compile || { count 0 1; exit 1; }
program=$ROOT/$(sed -nE 's/^ *Executable .*\((.*)\)$/\1/p' "$work/compile")
"$program" --list --format terse | sed -n 's/: test$//p' >"$work/tests"
# The longest files run first, so that all servers end at about the same time.
mapfile -t files < <({ printf '%s\n' worker dead_letters schedules worker_crash model concurrency examples sql_worker flow; sed 's/::.*//' "$work/tests"; } | awk '!seen[$0]++')

# on_server N COMMAND… — replace this shell by a command with the variables of the N-th server.
# Call it in a subshell. The first server is the one of the environment.
on_server() {
  if (($1 > 1)); then eval "$(scripts/cluster.sh "test_client$1" env)"; fi
  export FETCHQ_STATE_DIR=$FETCHQ_STATE_DIR/$1
  shift
  exec "$@"
}
for ((n = 1; n <= servers; n++)); do
  as_pg mkdir -p "$FETCHQ_STATE_DIR/$n"
  if ((n > 1)); then
    scripts/cluster.sh "test_client$n" reset
    FETCHQ_PG_CONF='fsync = off' scripts/cluster.sh "test_client$n" start
  fi
done

# run_file N FILE — run the tests of a file on the N-th server.
run_file() {
  mapfile -t names < <(grep "^$2::" "$work/tests" || :)
  ((${#names[@]})) || return 0
  on_server "$1" "$program" --test-threads=1 --exact "${names[@]}"
}
export FETCHQ_SKIPPED=$work/skipped # Tests that need what the installation lacks write here why.
next=0 beat=$SECONDS
: >"$work/all"
while ((next < ${#files[@]} || ${#job[@]})); do
  for ((n = 1; n <= servers; n++)); do
    if [[ -n ${job[$n]:-} ]]; then
      if kill -0 "${job[$n]}" 2>/dev/null; then continue; fi
      wait "${job[$n]}" || :
      unset "job[$n]"
      cat "$work/on.$n"
      cat "$work/on.$n" >>"$work/all"
    fi
    if ((next < ${#files[@]})); then
      echo "--- ${files[next]}.rs, on server $n of $servers"
      run_file "$n" "${files[next]}" >"$work/on.$n" 2>&1 &
      job[$n]=$! next=$((next + 1))
    fi
  done
  nap 0.1
  if ((SECONDS - beat >= 15)); then
    echo "… $(cat "$work/all" "$work"/on.* | grep -cE '^test [^ ]+ \.\.\. ' || :) of $(wc -l <"$work/tests") tests have begun"
    beat=$SECONDS
  fi
done

# The failures are counted by the list of tests, so that tests that a crash has prevented count as
# failed.
ok=$(awk '/^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ /^passed/) n += $(i - 1) } END { print n + 0 }' "$work/all")
bad=$(($(wc -l <"$work/tests") - ok))
# A skipped test ends like one that passes. A test that leaves a part out counts as passed.
skipped=0
if [[ -e $FETCHQ_SKIPPED ]]; then
  sort -u "$FETCHQ_SKIPPED"
  skipped=$(sort -u "$FETCHQ_SKIPPED" | grep -c '^skipped: ' || :)
  ok=$((ok - skipped))
fi
echo
echo "$ok tests passed, $bad failed, $skipped skipped; on $servers servers"
count "$ok" "$bad" "$skipped"
# The check for missed index entries of the ready floors has found none on these servers.
no_misses() {
  local n
  for ((n = 1; n <= servers; n++)); do
    [[ $(on_server "$n" "$PG_BINDIR/psql" -XAtc 'select floor_misses from fetchq.ready_stats()') == 0 ]] || return 1
  done
}
one "floor_misses is 0" no_misses
# A crash restarts the server, and most tests would go on as if nothing had happened.
no_crash() {
  local n rc=0
  for ((n = 1; n <= servers; n++)); do has_no_crash "$n" || rc=1; done
  return "$rc"
}
# has_no_crash N — the same for the N-th server. It fails when the log cannot be read.
has_no_crash() (
  if (($1 > 1)); then
    vars=$(scripts/cluster.sh "test_client$1" env) || exit 1
    eval "$vars"
  fi
  rc=0
  as_pg grep -aE 'PANIC:|TRAP:|was terminated by signal' "$(dirname "${FETCHQ_PGDATA:?}")/log" || rc=$?
  ((rc == 1))
)
one "no process of these servers has crashed" no_crash
((bad == 0))
