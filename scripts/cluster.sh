#!/usr/bin/env bash
# Manage a private PostgreSQL server of this checkout, separate from all others on the machine.
#
#   cluster.sh NAME start [--bare]   start it, with database fetchq and the extension
#                                    (--bare: without the extension)
#   cluster.sh NAME stop | reset     stop it | stop it and remove its data
#   cluster.sh NAME status | env     show its state | print export lines for a shell
#   cluster.sh NAME psql [ARG…]      psql in database fetchq
#
# FETCHQ_NO_PRELOAD=1   start without shared_preload_libraries
# FETCHQ_PG_CONF="…"    add lines to the server's configuration
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

NAME=${1:-} ACTION=${2:-}
[[ $NAME =~ ^[a-z][a-z0-9_]{0,19}$ && -n $ACTION ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
shift 2

# libpq settings for another server (PGHOST, PGPASSWORD, …) must not reach this one.
for var in "${!PG@}"; do [[ $var == PG[A-Z]* && $var != PGRX_* ]] && unset "$var"; done

load_server
DIR=$STATE/$NAME   # the folder of this cluster; the socket may be elsewhere
DATA=$DIR/data
LOG=$DIR/log
SOCKET=$DIR/socket
# The path of a socket is limited to 107 bytes, and libpq splits host names at commas.
if ((${#SOCKET} > 85)) || [[ $SOCKET =~ [^A-Za-z0-9._/-] ]]; then
  SOCKET=/tmp/fetchq-$HASH-$NAME
fi

# --------------------------------------------------------------- processes --
# processes — print the ids of all PostgreSQL processes that run in the data directory.
# It runs as the server's user, because a root without all capabilities may not read /proc.
# shellcheck disable=SC2016
processes() {
  as_pg bash -c 'for p in /proc/[0-9]*; do
    if [[ $(readlink "$p/cwd") == "$1" && $(readlink "$p/exe") == */postgres* ]]; then echo "${p#/proc/}"; fi
  done 2>/dev/null' _ "$DATA"
}

# server_pid — print the id of the postmaster, or nothing when it is down. The pid file alone
# proves nothing, because after a kill -9 its number may belong to another process.
server_pid() {
  local pid
  pid=$(as_pg head -n 1 "$DATA/postmaster.pid" 2>/dev/null) || return 1
  [[ $pid =~ ^[0-9]+$ ]] && processes | grep -xF "$pid"
}

# clear_stale — clean up after a kill -9 of the postmaster: end its remaining children, and remove
# the lock files of the data and of the socket. They would prevent a start while their number
# belongs to another process, or to a zombie.
clear_stale() {
  local left i
  as_pg test -e "$DATA/postmaster.pid" || compgen -G "$SOCKET/.s.PGSQL.*" >/dev/null || return 0
  for i in {1..50}; do
    left=$(processes)
    [[ -n $left ]] || break
    # Idle children end by themselves when the postmaster is gone.
    # shellcheck disable=SC2086
    if ((i == 20)); then as_pg kill -QUIT $left 2>/dev/null || :; fi
    nap 0.1
  done
  [[ -z $left ]] || die "these processes of a killed server do not end: $left"
  warn "cluster $NAME was not shut down cleanly: it will recover when it starts"
  as_pg rm -f "$DATA/postmaster.pid"
  rm -f "$SOCKET"/.s.PGSQL.*
}

# -------------------------------------------------------------------- port --
port() { as_pg cat "$DIR/port" 2>/dev/null; }

new_port() { "$ROOT/scripts/free-port.sh" | as_pg_write "$DIR/port"; }

# ---------------------------------------------------------- initialisation --
make_dirs() {
  as_pg_dir "$DIR"
  # In a world-writable /tmp another user may have made a file of this name.
  if [[ ! -d $SOCKET ]]; then rm -f "$SOCKET"; as_pg_dir "$SOCKET"; fi
  [[ ! -L $SOCKET && $(stat -c %U "$SOCKET") == "$SERVER_USER" ]] || die "$SOCKET does not belong to $SERVER_USER: remove it"
  if [[ $STATE != "$ROOT/.pg" && $(readlink "$ROOT/.pg/$NAME") != "$DIR" ]]; then
    step "cluster $NAME: its data is in $DIR ($SERVER_USER cannot enter $ROOT)"
    rm -rf "${ROOT:?}/.pg/$NAME"
    ln -s "$DIR" "$ROOT/.pg/$NAME"
  fi
}

init_data() {
  local made
  if ! as_pg test -e "$DATA/PG_VERSION"; then
    step "cluster $NAME: initdb"
    as_pg rm -rf "$DATA" "$DATA.new" # An interrupted run may have left these.
    od -An -N16 -tx1 /dev/urandom | tr -d ' \n' | as_pg_write "$DIR/password"
    as_pg "$PG_BINDIR/initdb" -D "$DATA.new" --username=postgres --pwfile="$DIR/password" \
      --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 --no-sync >/dev/null
    echo "include = 'fetchq.conf'" | as_pg tee -a "$DATA.new/postgresql.conf" >/dev/null
    as_pg mv "$DATA.new" "$DATA"
  fi
  made=$(as_pg cat "$DATA/PG_VERSION") || die "$SERVER_USER cannot read $DATA, because another user may have made or copied it: run 'make reset'"
  [[ $made == "$PG_MAJOR" ]] || die "$DATA was made by PostgreSQL $made, but this is PostgreSQL $PG_MAJOR: reset the cluster first"
}

# configuration BARE — print the settings that this script adds to the server's configuration.
configuration() {
  local preload=fetchq
  if [[ ${FETCHQ_NO_PRELOAD:-} == 1 ]]; then preload=; fi
  # A bare server may be started before the first build.
  if [[ $1 == 1 && ! -e $PG_LIBDIR/fetchq.so ]]; then preload=; fi
  cat <<CONF
# Written by scripts/cluster.sh at every start.
listen_addresses = '127.0.0.1'
port = $(port)
unix_socket_directories = '$SOCKET'
unix_socket_permissions = 0700
shared_preload_libraries = '$preload'
max_connections = 200
wal_level = replica
max_wal_senders = 10
max_prepared_transactions = 20
fsync = on
synchronous_commit = on
log_min_messages = warning
# The background worker runs on the dev server only. The suites call maintenance themselves.
fetchq.background_worker = $([[ $NAME == dev ]] && echo on || echo off)
# Most suites, and the benchmarks, test other things than what new queues start with. Those of the
# documentation and of the quick start have the defaults of fetchq, as the dev server has.
fetchq.queue_defaults = '$(case $NAME in test_docs | test_quickstart) ;; test_* | bench* | pages | soak | freeze) echo '{}' ;; esac)'
log_line_prefix = '%m [%p] %q%u@%d '
${FETCHQ_PG_CONF:-}
CONF
}

# fingerprint CONFIG — print a checksum of what a running server must have been started with.
fingerprint() {
  echo "$1" | cksum
  "$PG_BINDIR/postgres" --version
  if [[ $1 == *"shared_preload_libraries = 'fetchq'"* ]]; then
    # The content counts, not the date: a build without changes needs no restart.
    [[ -e $PG_LIBDIR/fetchq.so ]] || die "$PG_LIBDIR/fetchq.so is missing: run 'make build' first"
    cksum <"$PG_LIBDIR/fetchq.so"
  fi
}

# ----------------------------------------------------------------- actions --
sql() { "$PG_BINDIR/psql" -XqAt -v ON_ERROR_STOP=1 -h "$SOCKET" -p "$(port)" -U postgres "$@"; }

# launch — run pg_ctl without the open files of this script. A server that inherits a lock, or a
# pipe of make, would keep it for as long as the server runs.
launch() (
  for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    if ((fd > 2)); then eval "exec $fd>&-" 2>/dev/null || :; fi
  done
  # An operator may have this variable. Even so, no error that the server sends to a client has a
  # backtrace, unless it is a defect.
  export RUST_BACKTRACE=1
  as_pg "$PG_BINDIR/pg_ctl" start -D "$DATA" -l "$LOG" -w -t 60 -s </dev/null >/dev/null 2>&1
)

start() {
  local bare=0 conf want tries
  case ${1:-} in --bare) bare=1 ;; '') ;; *) die "start: unknown option '$1'; only --bare is known" ;; esac
  make_dirs
  init_data

  if server_pid >/dev/null; then
    conf=$(configuration "$bare"); want=$(fingerprint "$conf")
    if [[ $want != "$(as_pg cat "$DIR/started-with" 2>/dev/null)" ]]; then
      step "cluster $NAME: restarting, because the build or the settings have changed"
      stop
    fi
  fi

  if ! server_pid >/dev/null; then
    clear_stale
    for tries in 1 2 3; do
      if [[ -z $(port) ]] || ! "$ROOT/scripts/free-port.sh" "$(port)"; then new_port; fi
      conf=$(configuration "$bare"); want=$(fingerprint "$conf")
      echo "$conf" | as_pg_write "$DATA/fetchq.conf"
      : | as_pg_write "$LOG"
      step "cluster $NAME: starting PostgreSQL $PG_MAJOR on port $(port)"
      if launch; then break; fi
      # Another process has taken the port meanwhile, so try another one.
      if ((tries < 3)) && as_pg grep -q 'could not bind' "$LOG"; then continue; fi
      as_pg tail -n 30 "$LOG" >&2
      as_pg "$PG_BINDIR/pg_ctl" stop -D "$DATA" -m immediate -s >/dev/null 2>&1 || :
      die "cluster $NAME did not start; see its log: $LOG"
    done
    "$PG_BINDIR/pg_isready" -q -h 127.0.0.1 -p "$(port)" -t 30 || die "cluster $NAME does not answer on port $(port); see its log: $LOG"
    echo "$want" | as_pg_write "$DIR/started-with"
  fi

  if [[ -z $(sql -d postgres -c "select 1 from pg_database where datname = 'fetchq'") ]]; then
    sql -d postgres -c 'create database fetchq'
  fi
  if ((!bare)); then PGOPTIONS='-c client_min_messages=warning' sql -d fetchq -c 'create extension if not exists fetchq'; fi
}

stop() {
  if server_pid >/dev/null; then
    as_pg "$PG_BINDIR/pg_ctl" stop -D "$DATA" -m fast -w -t 60 -s 2>/dev/null ||
      as_pg "$PG_BINDIR/pg_ctl" stop -D "$DATA" -m immediate -w -t 30 -s ||
      die "cluster $NAME does not stop; see its log: $LOG"
    step "cluster $NAME: stopped"
  else
    clear_stale
  fi
}

reset() {
  stop
  # The full paths are below folders that this script has made.
  rm -rf "${STATE:?}/${NAME:?}" "$SOCKET"
  if [[ -L $ROOT/.pg/$NAME ]]; then rm -f "$ROOT/.pg/$NAME"; fi
}

settings() {
  local password
  [[ -n $(port) ]] || die "cluster $NAME was never started"
  password=$(as_pg cat "$DIR/password")
  printf 'export %s=%q\n' PGHOST "$SOCKET" PGPORT "$(port)" PGUSER postgres PGDATABASE fetchq \
    PGPASSWORD "$password" FETCHQ_PGDATA "$DATA" \
    FETCHQ_URL "postgres://postgres:$password@127.0.0.1:$(port)/fetchq"
}

status() {
  local pid
  if pid=$(server_pid); then
    echo "cluster $NAME runs: PostgreSQL $PG_MAJOR, process $pid, port $(port), socket in $SOCKET, data in $DATA"
  else
    echo "cluster $NAME is down"
    return 3
  fi
}

case $ACTION in
  start | stop | reset) with_lock "cluster-$NAME"; "$ACTION" "$@" ;;
  status) status ;;
  env) settings ;;
  psql)
    eval "$(settings)"
    exec "$PG_BINDIR/psql" "$@"
    ;;
  *) die "unknown action '$ACTION'; the actions are start, stop, reset, status, env and psql" ;;
esac
