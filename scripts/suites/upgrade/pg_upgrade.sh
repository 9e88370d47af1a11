#!/usr/bin/env bash
# A real pg_upgrade of a server with fetchq preloaded, under queues at work. The suite `upgrade` runs it.
#
# pg_upgrade reads the counter of transaction IDs of the old cluster, and then runs the old server
# to dump the definitions. When fetchq writes meanwhile, the new cluster has IDs that it does not
# know. So the old cluster has documents, schedules and leases that are due during the upgrade.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/../common.sh"
OLD_BIN=$(server_bindir "$OLD_PG_CONFIG") NEW_BIN=$(server_bindir "$NEW_PG_CONFIG")

DIR=$STATE/upgrade
OLD=$DIR/old NEW=$DIR/new
SOCKET=$(as_pg mktemp -d /tmp/fetchq-upgrade-XXXXXX) # The path of a socket is limited to 107 bytes.
PORT=54321                                           # It is only the name of the socket.

end() {
  local rc=$?
  trap - EXIT
  stop "$OLD_BIN" "$OLD" 2>/dev/null || :
  stop "$NEW_BIN" "$NEW" 2>/dev/null || :
  rm -rf "$SOCKET" "$SCRATCH" "$SCRATCH.counts"
  if ((rc == 0)); then rm -rf "${DIR:?}"; else echo "the clusters and their logs are in $DIR"; fi
  exit "$rc"
}

# start BIN DATA [OPTION…] — start a server; the options are added to its command line.
start() {
  local bin=$1 data=$2; shift 2
  as_pg env -u RUST_BACKTRACE "$bin/pg_ctl" start -D "$data" -l "$data.log" -w -t 60 -s -o "$*" </dev/null >/dev/null 2>&1 ||
    { as_pg tail -n 20 "$data.log"; return 1; }
}
stop() { if as_pg test -e "$2/postmaster.pid"; then as_pg "$1/pg_ctl" stop -D "$2" -m fast -w -t 60 -s; fi; }
sql() { as_pg "$NEW_BIN/psql" -XqAt -v ON_ERROR_STOP=1 -h "$SOCKET" -p "$PORT" -U postgres -d work "$@"; }

# init BIN DATA — make a cluster that preloads fetchq, with its background worker.
init() {
  as_pg "$1/initdb" -D "$2" --username=postgres --auth=trust --encoding=UTF8 --locale=C --data-checksums --no-sync >/dev/null
  as_pg tee -a "$2/postgresql.conf" >/dev/null <<CONF
listen_addresses = ''
unix_socket_directories = '$SOCKET'
port = $PORT
shared_preload_libraries = 'fetchq'
fetchq.background_worker = on
max_prepared_transactions = 5
fsync = off
log_min_messages = warning
CONF
}

# until_true WHAT QUERY — wait until a query returns true.
until_true() {
  local i
  for ((i = 0; i < 600; i++)); do
    if [[ $(sql -c "$2") == t ]]; then return; fi
    nap 0.1
  done
  echo "FAILED: timed out while waiting until $1: $2"
  return 1
}

# counters DATA — print the counters of transactions in the control file of a cluster.
counters() {
  as_pg "$OLD_BIN/pg_controldata" "$1" | sed -nE "s/^Latest checkpoint's (NextXID|NextMultiXactId|NextMultiOffset): *//p" | tr '\n' ' '
}

# fill — make queues with documents in every state, and much that becomes due in the next minutes.
fill() {
  sql <<'SQL'
create extension fetchq;
select fetchq.queue_create(name) from unnest('{q,kept,dead,ticks,ordered,notified}'::text[]) name;
select fetchq.queue_configure('kept', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}, "dead_letter": "dead"}');
select fetchq.queue_set_max_attempts('kept', 2);
select fetchq.queue_configure('ordered', '{"ordered": true, "max_active": 5}');
select fetchq.queue_enable_notify('notified');
select fetchq.schedule_create('second', 'ticks', '1 second');
select fetchq.schedule_create('nightly', 'ticks', '30 2 * * *', timezone => 'Europe/Berlin');
-- Documents that are due all the time during the upgrade, and far ahead.
select fetchq.doc_push('q', 'p' || n, 0, 0, now() + n * interval '100 ms', '{}') from generate_series(1, 3000) n;
select fetchq.doc_push('q', 'far', 0, 0, now() + interval '1 year', '{}');
select fetchq.doc_push('kept', 'k' || n) from generate_series(1, 600) n;
select fetchq.doc_put('ordered', 'o' || n, ordering_key => 'k' || n % 7) from generate_series(1, 100) n;
select fetchq.doc_append('notified', '{}') from generate_series(1, 50);
SQL
  # Leases that expire all the time; of sessions that are gone by then, too.
  sql -c "select fetchq.doc_pick('kept', 0, 1, n * interval '200 ms') from generate_series(1, 400) n" >/dev/null
  sql -c "set fetchq.session_leases = 'keep'; select fetchq.doc_pick('ordered', 0, 3, '20 s')" >/dev/null
  sql -c "select fetchq.doc_complete('kept', subject) from (select subject from fetchq_data.kept__docs where status = 2 and next_iteration > now() + interval '10 seconds' order by subject limit 100) s" >/dev/null
  # A multixact: two sessions lock a row, and one of them updates it.
  sql -c "begin; select 1 from fetchq.queues where name = 'q' for key share; prepare transaction 'lock'" >/dev/null
  sql -c "update fetchq.queues set config = '{\"n\": 1}' where name = 'q'; update fetchq.jobs set payload = '{}'" >/dev/null
  sql -c "commit prepared 'lock'"
  until_true "the background worker has promoted documents" "select count(*) > 5 from fetchq_data.q__docs where status = 1"
  until_true "a schedule has ticked" "select count(*) > 2 from fetchq_data.ticks__docs"
  until_true "leases have expired" "select count(*) > 0 from fetchq_data.kept__docs where attempts > 0 and status = 1"
}

# checksums — print the checksum of each table of fetchq, and the state of its sequences.
checksums() {
  local table kind columns sum
  sql -c "select c.relkind, format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('fetchq', 'fetchq_data') and c.relkind in ('r', 'p', 'S') order by 2" >"$SCRATCH"
  while IFS='|' read -r kind table; do
    columns="count(*), md5(string_agg(t::text, ',' order by t::text collate \"C\"))"
    if [[ $kind == S ]]; then columns='last_value, is_called'; fi
    sum=$(sql -c "select $columns from $table t" </dev/null) || return
    echo "$table $sum"
  done <"$SCRATCH"
}

upgrade() (
  as_pg mkdir "$DIR/work"
  # --retain keeps the logs of the servers that pg_upgrade runs.
  as_pg bash -c 'cd "$1" && shift && exec "$@"' _ "$DIR/work" "$NEW_BIN/pg_upgrade" --retain \
    --old-bindir="$OLD_BIN" --new-bindir="$NEW_BIN" --old-datadir="$OLD" --new-datadir="$NEW" \
    --socketdir="$SOCKET" --username=postgres
)
same() { diff "$1" "$2"; }

# nothing_ran — the servers that pg_upgrade ran have logged nothing of fetchq.
nothing_ran() {
  # shellcheck disable=SC2016
  ! as_pg bash -c 'grep -rh "fetchq \(launcher\|background\|jobs\)" "$@" | grep .' _ "$DIR/work" "$NEW/pg_upgrade_output.d" 2>/dev/null
}

# The old installation may lack this extension.
amcheck() { sql -c 'create extension if not exists amcheck' 2>/dev/null && as_pg "$NEW_BIN/pg_amcheck" -h "$SOCKET" -p "$PORT" -U postgres -d work --heapallindexed --parent-check; }

# work_goes_on — documents are pushed, picked and settled, and the background worker does its part.
work_goes_on() {
  until_true "the status is fine" "select count(*) = 0 from fetchq.status() where state in ('late', 'failing', 'not running', 'unknown')" &&
    sql -c "select fetchq.doc_push('q', 'new', 0, 9, now() + interval '300 ms', '{}')" >/dev/null &&
    until_true "a new document is promoted" "select status = 1 from fetchq_data.q__docs where subject = 'new'" &&
    [[ $(sql -c "select subject from fetchq.doc_pick('q', 0, 1, '1 hour')") == new ]] &&
    [[ $(sql -c "select fetchq.doc_complete('q', 'new')") == 1 ]] &&
    until_true "old documents are promoted" "select not exists (select from fetchq_data.q__docs where status = 0 and next_iteration < now() - interval '1 second')" &&
    until_true "old leases are taken back" "select not exists (select from fetchq_data.kept__docs where status = 2 and next_iteration < now() - interval '1 second')" &&
    sql -c "select fetchq.doc_pick('kept', 0, 500, '1 hour')" >/dev/null &&
    sql -c "select fetchq.doc_kill('kept', subject) from fetchq_data.kept__docs where status = 2 and next_iteration > now() + interval '1 minute'" >/dev/null &&
    until_true "failed documents are dead letters" "select count(*) > 0 from fetchq_data.dead__docs" &&
    until_true "the schedule goes on" "select bool_or(created_at > now() - interval '5 seconds') from fetchq_data.ticks__docs" &&
    [[ $(sql -c "select floor_misses from fetchq.ready_stats()") == 0 ]]
}

# silent LOG — a server has logged nothing but that it was stopped and started.
silent() { ! as_pg grep -E 'WARNING|ERROR|FATAL|PANIC' "$1" | grep -v 'terminating .* due to administrator command'; }

scratch
: "${FETCHQ_COUNTS:=$SCRATCH.counts}"; export FETCHQ_COUNTS
trap end EXIT
rm -rf "${DIR:?}"; as_pg_dir "$DIR"
init "$OLD_BIN" "$OLD"
start "$OLD_BIN" "$OLD"
as_pg "$NEW_BIN/createdb" -h "$SOCKET" -p "$PORT" -U postgres work
fill >/dev/null
stop "$OLD_BIN" "$OLD"

# What the tables have while nothing of fetchq runs. The settings say that the worker is on.
start "$OLD_BIN" "$OLD" -c fetchq.background_worker=off
checksums >"$DIR/checksums.old"
stop "$OLD_BIN" "$OLD"
counters "$OLD" >"$DIR/counters.old"; echo "before: $(cat "$DIR/counters.old")"

init "$NEW_BIN" "$NEW"
one "pg_upgrade runs" upgrade
counters "$OLD" >"$DIR/counters.after"; echo "after: $(cat "$DIR/counters.after")"
one "no transaction ID was used in the old cluster" same "$DIR/counters.old" "$DIR/counters.after"
one "nothing of fetchq ran" nothing_ran

start "$NEW_BIN" "$NEW" -c fetchq.background_worker=off
kept() { checksums >"$DIR/checksums.new" && same "$DIR/checksums.old" "$DIR/checksums.new"; }
one "every row was kept" kept
one "tables and indexes are intact" amcheck
stop "$NEW_BIN" "$NEW"

start "$NEW_BIN" "$NEW"
one "work goes on" work_goes_on
one "every table can be frozen" sql -c 'vacuum (freeze, analyze)'
one "tables and indexes are intact after more work" amcheck
one "the log is silent" silent "$NEW.log"
stop "$NEW_BIN" "$NEW"
# The files of a failed run are kept.
! grep -q ' [1-9]' "$FETCHQ_COUNTS"
