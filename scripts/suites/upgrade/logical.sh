#!/usr/bin/env bash
# Queues at work move to another server, of a newer major version, by logical replication, as
# docs/guides/upgrade.md describes. The suite `upgrade` runs it.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/../common.sh"
# shellcheck source=scripts/suites/upgrade/common.sh
. "$(dirname "$0")/common.sh"
begin upgrade_logical
OLD=54341 NEW=54342 # The servers are named by their ports.
PG_BINDIR=$(server_bindir "$NEW_PG_CONFIG")

old() { psql_on "$OLD" work "$@"; }
new() { psql_on "$NEW" work "$@"; }
dump() { as_pg "$PG_BINDIR/pg_dump" -h "$SOCKET" -p "$OLD" -U postgres -d work "$@"; }

init "$(server_bindir "$OLD_PG_CONFIG")" "$DIR/old" "$OLD"
init "$PG_BINDIR" "$DIR/new" "$NEW"
echo 'wal_level = logical' | as_pg tee -a "$DIR/old/postgresql.conf" >/dev/null
echo 'fetchq.background_worker = off' | as_pg tee -a "$DIR/new/postgresql.conf" >/dev/null
start "$DIR/old"
start "$DIR/new"
psql_on "$OLD" postgres -c 'create database work'
psql_on "$NEW" postgres -c 'create database work'

old >/dev/null <<'SQL'
create extension fetchq;
select fetchq.queue_create(name) from unnest('{q,kept,dead,ticks,ordered,notified,spare}'::text[]) name;
select fetchq.queue_configure('kept', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}, "dead_letter": "dead", "max_attempts": 2}');
select fetchq.queue_configure('ordered', '{"ordered": true, "max_active": 5}');
select fetchq.queue_configure('spare', '{"rate": {"picks": 1000, "per": "1 hour"}}');
select fetchq.queue_enable_notify('notified');
select fetchq.schedule_create('second', 'ticks', '1 second');
select fetchq.doc_push('q', 'before' || n) from generate_series(1, 2000) n;
select fetchq.doc_push('kept', 'k' || n) from generate_series(1, 300) n;
select fetchq.doc_put('ordered', 'o' || n, ordering_key => 'k' || n % 7) from generate_series(1, 100) n;
select fetchq.doc_append('notified', '{}') from generate_series(1, 50);
select fetchq.doc_push('spare', 'planned', 0, 0, now() + interval '1 year', '{}');
SQL

# load NUMBER — producer and worker at once, until the file $DIR/stop exists.
load() {
  local n=0
  while [[ ! -e $DIR/stop ]]; do
    n=$((n + 1))
    echo "select fetchq.doc_push('q', 'load$1-$n', 0, $n % 3, now() + $n % 4 * interval '200 ms', '{}');
      do \$\$ declare s record; begin
        for s in select * from fetchq.doc_pick('q', 0, 1, '1 hour') loop
          if $n % 5 > 0 then perform fetchq.doc_complete('q', s.subject); end if;
        end loop;
        for s in select * from fetchq.doc_pick('kept', 0, 1, '500 ms') loop
          if $n % 3 > 0 then perform fetchq.doc_complete('kept', s.subject); end if;
        end loop;
        for s in select * from fetchq.doc_pick('ordered', 0, 1, '1 hour') loop
          if $n % 4 > 0 then perform fetchq.doc_complete('ordered', s.subject); end if;
        end loop;
      end \$\$;"
  done | old >/dev/null
}

# ----------------------------------------------------------------- the move --
# Everything in these functions is in docs/guides/upgrade.md.
publishes() {
  old <<'SQL'
do $$ declare t regclass; begin
    -- A table without a key, such as a history, is identified by whole rows.
    for t in select oid from pg_class c where relnamespace = 'fetchq_data'::regnamespace and relkind = 'r'
        and not exists (select from pg_index where indrelid = c.oid and indisprimary)
    loop
        execute format('alter table %s replica identity full', t);
    end loop;
    execute (select 'create publication fetchq_move for table ' || string_agg(oid::regclass::text, ', ')
        from pg_class where relnamespace = 'fetchq_data'::regnamespace and relkind = 'r');
end $$;
SQL
}
subscribes() {
  dump --schema-only | new >/dev/null &&
    new -c "create subscription fetchq_move connection 'host=$SOCKET port=$OLD dbname=work user=postgres' publication fetchq_move"
}
copied() {
  until_on "$NEW" work "all tables are copied" "select count(*) > 0 and bool_and(srsubstate = 'r') from pg_subscription_rel"
}
caught_up() {
  local position; position=$(old -c 'select pg_current_wal_lsn()')
  until_on "$OLD" work "the new server has everything" "select confirmed_flush_lsn >= '$position' from pg_replication_slots where slot_name = 'fetchq_move'"
}
switches() {
  LEASE=$(old -c "select format('%L, lease => %s', subject, lease) from fetchq.doc_pick('notified', 0, 1, '1 hour')")
  old -c 'alter system set fetchq.background_worker = off' -c 'select pg_reload_conf()' >/dev/null
  until_on "$OLD" work "the background worker has ended" "select count(*) = 0 from pg_stat_activity where backend_type like 'fetchq background worker%'" &&
    caught_up &&
    new -c 'drop subscription fetchq_move' &&
    dump --data-only --exclude-table-data='fetchq_data.*' | new >/dev/null &&
    new <<'SQL' >/dev/null
do $$ declare s record; last bigint; begin
    for s in select c.oid::regclass as sequence, a.attrelid::regclass as tab, a.attname
        from pg_class c join pg_depend d on d.objid = c.oid and d.classid = 'pg_class'::regclass and d.deptype = 'i'
        join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        where c.relkind = 'S' and c.relnamespace = 'fetchq_data'::regnamespace
    loop
        execute format('select max(%I) from %s', s.attname, s.tab) into last;
        if last is not null then perform setval(s.sequence, last); end if;
    end loop;
end $$;
SQL
}

# ------------------------------------------------------------------- checks --
# contents PORT — the rows of all tables of queues, and of the registry.
contents() {
  local table
  for table in $(psql_on "$1" work -c "select 'fetchq_data.' || relname from pg_class where relnamespace = 'fetchq_data'::regnamespace and relkind = 'r'") \
      fetchq.queues fetchq.queue_places fetchq.schedules fetchq.ordering_keys fetchq.lease_slots; do
    psql_on "$1" work -c "select '$table', to_jsonb(t) from $table t"
  done | LC_ALL=C sort
  psql_on "$1" work -c "select queue, task, settings from fetchq.jobs order by 1, 2"
  psql_on "$1" work -c "select queue, metric, sum(value) from fetchq.metrics_exact group by 1, 2 order by 1, 2"
}
kept_all() {
  contents "$OLD" >"$DIR/contents.old" && contents "$NEW" >"$DIR/contents.new" || return
  (($(wc -l <"$DIR/contents.old") > 2000)) && diff "$DIR/contents.old" "$DIR/contents.new"
}
# Each ready document is found by picks with floors, as the apply process has noted it.
finds_all() {
  local queue left
  for queue in q kept notified; do
    left=$(new -c "select count(*) from fetchq_data.${queue}__docs where status = 1")
    [[ $(new -c "select count(*) from fetchq.doc_pick('$queue', 0, 100000, '1 hour')") == "$left" ]] || return
  done
  [[ $(new -c 'select slots_used > 0, floor_misses from fetchq.ready_stats()') == 't|0' ]]
}
counters_exact() {
  new <<'SQL'
do $$ declare q record; documents bigint; begin
    for q in select m.queue, m.metric, sum(m.value) as counted, s.status from fetchq.metrics_exact m
        join (values ('pln', 0), ('pnd', 1), ('act', 2), ('cpl', 3)) s (metric, status) using (metric)
        group by m.queue, m.metric, s.status
    loop
        execute format('select count(*) from fetchq_data.%I where status = %s', q.queue || '__docs', q.status) into documents;
        if documents <> q.counted then raise exception '% of % is %, not %', q.metric, q.queue, q.counted, documents; end if;
    end loop;
end $$;
SQL
}
lease_goes_on() { [[ $(new -c "select fetchq.doc_complete('notified', $LEASE)") == 1 ]]; }
goes_on() {
  new -c 'alter system set fetchq.background_worker = on' -c 'select pg_reload_conf()' >/dev/null
  until_on "$NEW" work "the schedule goes on" "select bool_or(created_at > now() - interval '5 seconds') from fetchq_data.ticks__docs" &&
    [[ $(new -c "select count(*) - count(distinct next_iteration) from fetchq_data.ticks__docs") == 0 ]] &&
    new -c "select fetchq.doc_push('q', 'after', 0, 9, now() + interval '300 ms', '{}')" >/dev/null &&
    until_on "$NEW" work "a new document is promoted" "select status = 1 from fetchq_data.q__docs where subject = 'after'" &&
    [[ $(new -c "select subject from fetchq.doc_pick('q', 0, 1, '1 hour')") == after ]] &&
    [[ $(new -c "select count(*) from (select seq from fetchq_data.q__docs group by 1 having count(*) > 1) s") == 0 ]] &&
    new -c "select fetchq.doc_complete('q', 'after')" >/dev/null &&
    until_on "$NEW" work "old leases are taken back" "select not exists (select from fetchq_data.kept__docs where status = 2 and next_iteration < now() - interval '1 second')" &&
    until_on "$NEW" work "the status is fine" "select count(*) = 0 from fetchq.status() where state in ('late', 'failing', 'not running', 'unknown')"
}

load 1 & load 2 &
one "the old server publishes" publishes
one "the new server subscribes" subscribes
one "the tables are copied under load" copied
old -c "select pg_sleep(3)" >/dev/null
touch "$DIR/stop"; wait
one "the switch" switches
one "every row is there" kept_all
one "the counters are exact" counters_exact
one "every document is found" finds_all
one "a lease of the old server goes on" lease_goes_on
one "work goes on" goes_on
silent() { ! as_pg grep -hE 'WARNING|ERROR|FATAL|PANIC' "$DIR/$1.log" |
  grep -v 'terminating .* due to administrator command\|wal_level"\? is insufficient to publish'; }
one "the log of the old server is silent" silent old
one "the log of the new server is silent" silent new
stop "$DIR/old"; stop "$DIR/new"
finish
