#!/usr/bin/env bash
# The console of the dev server, in the background.
#
#   console.sh start     build it, start it anew, and say its address
#   console.sh stop      stop it
#
# CONSOLE_PORT=n   its port (8090; another one if that is taken)
# ACTIONS=1        allow actions; by default it is read-only, because every user of this machine
#                  can reach it
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
dir=$ROOT/.pg/console
program=${CARGO_TARGET_DIR:-$ROOT/target}/client/fetchq

# console_pid — print the id of the console, or nothing. The file alone proves nothing, because
# after a restart of the machine its number may belong to another process.
console_pid() {
  local pid
  pid=$(cat "$dir/pid" 2>/dev/null) || return 1
  # The link says "(deleted)" after a build.
  [[ $pid =~ ^[0-9]+$ && $(readlink "/proc/$pid/exe") == "$program"* ]] && echo "$pid"
}

stop() {
  local pid i
  if pid=$(console_pid); then
    kill "$pid"
    for ((i = 0; i < 100; i++)); do
      if ! console_pid >/dev/null; then break; fi
      nap 0.1
    done
    if pid=$(console_pid); then kill -KILL "$pid"; fi
    step "console: stopped"
  fi
  rm -f "$dir/pid"
}

# launch PORT — start it without the open files of this script: a process that inherits a lock, or
# a pipe of make, would keep it.
launch() {
  (
    for fd in /proc/self/fd/*; do
      fd=${fd##*/}
      if ((fd > 2)); then eval "exec $fd>&-" 2>/dev/null || :; fi
    done
    exec setsid "$program" serve --listen "127.0.0.1:$1" "${options[@]}" </dev/null >"$dir/log" 2>&1
  ) &
  echo $! >"$dir/pid"
}

# address — print what the console says in its log, or fail when it has ended.
address() {
  local i
  for ((i = 0; i < 100; i++)); do
    if sed -nE 's|.* (http://[0-9.:]+/).*|\1|p' "$dir/log" | grep -m 1 .; then return; fi
    if ! kill -0 "$(cat "$dir/pid")" 2>/dev/null; then return 1; fi
    nap 0.1
  done
  return 1
}

start() {
  local url
  with_lock build
  step "console: building it (the first build takes about 2 minutes)"
  run_quiet "build of the console" "$ROOT/.pg/build-console.log" cargo build --profile client -p fetchq-console
  stop
  mkdir -p "$dir"
  eval "$(scripts/cluster.sh dev env)"
  options=()
  if [[ ${ACTIONS:-0} == 1 ]]; then options+=(--allow-actions); fi
  launch "${CONSOLE_PORT:-8090}"
  if ! url=$(address); then
    grep -q 'cannot listen' "$dir/log" || { cat "$dir/log" >&2; die "the console did not start"; }
    launch 0
    url=$(address) || { cat "$dir/log" >&2; die "the console did not start"; }
  fi
  echo "The console is at $url (read-only, unless it is started with 'make console ACTIONS=1')."
}

options=()
case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) die "console.sh start | stop" ;;
esac
