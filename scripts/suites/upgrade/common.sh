# Common helpers of the suites that upgrade servers. They source this file after suites/common.sh and
# set DIR, the folder for their servers. A server is named by its folder DATA; it has the folder of its
# programs in DATA.bin, and its log is DATA.log.
# shellcheck shell=bash

# begin NAME — make the folder DIR, and stop all servers in it at the end of the suite.
begin() {
  DIR=$STATE/$1
  scratch
  : "${FETCHQ_COUNTS:=$SCRATCH.counts}"; export FETCHQ_COUNTS
  SOCKET=$(as_pg mktemp -d /tmp/fetchq-upgrade-XXXXXX) # The path of a socket is limited to 107 bytes.
  trap end EXIT
  rm -rf "${DIR:?}"; as_pg_dir "$DIR"
}

end() {
  local rc=$? data
  trap - EXIT
  for data in "$DIR"/*/postmaster.pid; do
    if [[ -e $data ]]; then stop "${data%/postmaster.pid}" || :; fi
  done
  rm -rf "$SOCKET" "$SCRATCH" "$SCRATCH.counts"
  if ((rc == 0)); then rm -rf "${DIR:?}"; else echo "the servers and their logs are in $DIR"; fi
  exit "$rc"
}

# finish — end with the status 1 when a test has failed, so that the files are kept.
finish() { ! grep -q ' [1-9]' "$FETCHQ_COUNTS"; }

# start DATA [OPTION…] — start a server; the options are added to its command line.
start() {
  local data=$1; shift
  as_pg env -u RUST_BACKTRACE "$(cat "$data.bin")/pg_ctl" start -D "$data" -l "$data.log" -w -t 60 -s -o "$*" </dev/null >/dev/null 2>&1 ||
    { as_pg tail -n 20 "$data.log"; return 1; }
}
stop() { as_pg "$(cat "$1.bin")/pg_ctl" stop -D "$1" -m "${2:-fast}" -w -t 60 -s; }

# init BIN DATA PORT — make a cluster that preloads fetchq, with its background worker. The port is only
# the name of its socket.
init() {
  as_pg "$1/initdb" -D "$2" --username=postgres --auth=trust --encoding=UTF8 --locale=C --data-checksums --no-sync >/dev/null
  echo "$1" >"$2.bin"
  as_pg tee -a "$2/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$SOCKET'
port = $3
shared_preload_libraries = 'fetchq'
fetchq.background_worker = on
fetchq.queue_defaults = '{}'
fsync = off
log_min_messages = warning
CONF
}

# psql_on PORT DATABASE [OPTION…] — run psql.
psql_on() {
  local port=$1 db=$2; shift 2
  as_pg "$PG_BINDIR/psql" -XqAt -v ON_ERROR_STOP=1 -h "$SOCKET" -p "$port" -U postgres -d "$db" "$@"
}

# until_on PORT DATABASE WHAT QUERY — wait until a query returns true.
until_on() {
  local i
  for ((i = 0; i < 600; i++)); do
    if [[ $(psql_on "$1" "$2" -c "$4" </dev/null) == t ]]; then return; fi
    nap 0.1
  done
  echo "timed out while waiting until $3: $4"
  return 1
}
