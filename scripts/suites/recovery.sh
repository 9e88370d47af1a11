#!/usr/bin/env bash
# A base backup that was taken under load, recovered on another server to a point in time in the middle
# of leases: it has what was committed until then, and nothing of later. docs/guides/backup.md says so.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/suites/upgrade/common.sh
. "$(dirname "$0")/upgrade/common.sh"
needs "$PG_LIBDIR/fetchq.so"
begin recovery
PRIMARY=54351 RECOVERED=54352 # The servers are named by their ports.

primary() { psql_on "$PRIMARY" work "$@"; }
recovered() { psql_on "$RECOVERED" work "$@"; }
settings() { as_pg tee -a "$DIR/$1/postgresql.conf" >/dev/null; }
# picked SERVER N — lease documents; prints the arguments for settling each of them.
picked() { "$1" -c "select format('%L, lease => %s', subject, lease) from fetchq.doc_pick('leases', 0, $2, '1 hour')"; }
# completes SERVER ARGUMENTS — settle one of them.
completes() { [[ $("$1" -c "select fetchq.doc_complete('leases', $2)" </dev/null) == 1 ]]; }
# state SERVER — the documents of the queue, which are never due, and its counters. One that is 0 has a
# row or not, depending on when maintenance has packed the events.
state() {
  "$1" -c "select to_jsonb(d) from fetchq_data.leases__docs d order by subject" \
    -c "select metric, sum(value) from fetchq.metrics_exact where queue = 'leases' group by 1 having sum(value) <> 0 order by 1" \
    -c "select name from fetchq.queues where name <> 'later' order by 1"
}
# load — push and settle documents until the file $DIR/stop exists; some leases expire.
load() {
  local n=0
  while [[ ! -e $DIR/stop ]]; do
    n=$((n + 1))
    echo "select fetchq.doc_push('q', 'd$n', 0, $n % 3, now() + $n % 4 * interval '200 ms', '{}');
      do \$\$ declare s record; begin
        for s in select * from fetchq.doc_pick('q', 0, 2, '1 s') loop
          if $n % 5 > 0 then perform fetchq.doc_complete('q', s.subject); end if;
        end loop;
      end \$\$;"
  done | primary >/dev/null
}

documents_and_counters() { state recovered >"$DIR/found" && diff "$DIR/expected" "$DIR/found"; }
no_later_queue() { [[ $(recovered -c "select count(*) from fetchq.queues where name = 'later'") == 0 ]]; }
# are_lost — leases that were given after the target settle nothing.
are_lost() {
  local one said
  while read -r one; do
    if said=$(recovered -v VERBOSITY=verbose -c "select fetchq.doc_complete('leases', $one)" 2>&1 </dev/null); then echo "settled: $one"; return 1; fi
    grep -q 'ERROR:  55000: lease .* was lost' <<<"$said" || { echo "$said"; return 1; }
  done <<<"$AFTER"
}
# The documents are leased again, with other numbers.
leased_again() {
  local again; again=$(picked recovered 14)
  [[ $(sed "s/, lease.*//" <<<"$again" | sort -u | wc -l) == 14 ]] &&
    [[ $(sed "s/, lease.*//" <<<"$AFTER" | grep -vxFf <(sed "s/, lease.*//" <<<"$again") | wc -l) == 0 ]] &&
    [[ $(grep -cxFf <(echo "$AFTER") <<<"$again") == 0 ]] &&
    are_lost && completes recovered "$(sed -n 1p <<<"$again")"
}
ticks_once() {
  until_on "$RECOVERED" work "the schedule goes on" "select count(*) > 0 from fetchq_data.ticks__docs where created_at > pg_postmaster_start_time()" &&
    [[ $(recovered -c "select count(*) > $TICKS, count(*) - count(distinct next_iteration) from fetchq_data.ticks__docs") == 't|0' ]]
}
finds_all() {
  until_on "$RECOVERED" work "nothing is planned or leased" "select not exists (select from fetchq_data.q__docs where status in (0, 2))" || return
  local left; left=$(recovered -c 'select count(*) from fetchq_data.q__docs where status = 1')
  [[ $(recovered -c "select count(*) from fetchq.doc_pick('q', 0, 100000, '1 hour')") == "$left" ]] &&
    [[ $(recovered -c 'select floor_misses from fetchq.ready_stats()') == 0 ]]
}
status_is_fine() {
  until_on "$RECOVERED" work "the status is fine" "select count(*) = 0 from fetchq.status() where state in ('late', 'failing', 'not running', 'unknown')"
}
only_lost_leases() { ! as_pg grep -E 'WARNING|ERROR|FATAL|PANIC' "$DIR/recovered.log" | grep -v 'was lost\|the database system is starting up'; }

init "$PG_BINDIR" "$DIR/primary" "$PRIMARY"
as_pg mkdir "$DIR/archive"
settings primary <<<"archive_mode = on
archive_command = 'cp %p $DIR/archive/%f'"
start "$DIR/primary"
psql_on "$PRIMARY" postgres -c 'create database work'
primary >/dev/null <<'SQL'
create extension fetchq;
select fetchq.queue_create(name) from unnest('{q,leases,ticks}'::text[]) name;
select fetchq.queue_set_max_attempts('q', 1000000);
select fetchq.doc_push('leases', 'd' || n) from generate_series(1, 20) n;
select fetchq.schedule_create('second', 'ticks', '1 second');
SQL
load & loader=$!
until_on "$PRIMARY" work "the load runs" "select count(*) > 20 from fetchq_data.q__docs where status = 3"
as_pg "$PG_BINDIR/pg_basebackup" -h "$SOCKET" -p "$PRIMARY" -U postgres -D "$DIR/recovered" --checkpoint=fast --no-sync
until_on "$PRIMARY" work "the load goes on" "select count(*) > 60 from fetchq_data.q__docs where status = 3"
touch "$DIR/stop"; wait "$loader"

# The point in time: some documents are leased, one of them is settled.
BEFORE=$(picked primary 6)
completes primary "$(sed -n 1p <<<"$BEFORE")"
state primary >"$DIR/expected"
TICKS=$(primary -c 'select count(*) from fetchq_data.ticks__docs')
primary -c "select pg_create_restore_point('target')" >/dev/null
# What comes later is lost.
AFTER=$(picked primary 5)
completes primary "$(sed -n 2p <<<"$BEFORE")"
completes primary "$(sed -n 1p <<<"$AFTER")"
primary -c "select fetchq.doc_push('leases', 'late'), fetchq.queue_create('later')" >/dev/null
until_on "$PRIMARY" work "the schedule ticks" "select count(*) > $TICKS + 1 from fetchq_data.ticks__docs"
# The name is asked for at the switch: the schedule writes on, so the current file is soon the next one.
LAST=$(primary -c 'select pg_walfile_name(pg_switch_wal())')
until_on "$PRIMARY" work "the log is archived" "select last_archived_wal >= '$LAST' from pg_stat_archiver"
stop "$DIR/primary" immediate

echo "$PG_BINDIR" >"$DIR/recovered.bin"
as_pg touch "$DIR/recovered/recovery.signal"
settings recovered <<<"port = $RECOVERED
archive_mode = off
restore_command = 'cp $DIR/archive/%f %p'
recovery_target_name = 'target'
recovery_target_action = promote"
start "$DIR/recovered"
until_on "$RECOVERED" work "the server is a primary" 'select not pg_is_in_recovery()'
one "documents and counters are those of the target" documents_and_counters
one "a queue of later does not exist" no_later_queue
one "a lease of before settles its document" completes recovered "$(sed -n 2p <<<"$BEFORE")"
one "leases of later settle nothing" are_lost
one "their documents are leased again, with other numbers" leased_again
one "a schedule ticks once for each time" ticks_once
one "every document of the load is found" finds_all
one "the status is fine" status_is_fine
one "nothing else failed" only_lost_leases
stop "$DIR/recovered"
finish
