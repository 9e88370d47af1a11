-- Privileges. Functions run with the privileges of the caller, so those on the tables decide.
do $$ begin
    if exists (select from pg_roles where rolname = 'regress_fetchq_none') then drop owned by regress_fetchq_none; drop role regress_fetchq_none; end if;
    if exists (select from pg_roles where rolname = 'regress_fetchq_worker') then drop owned by regress_fetchq_worker; drop role regress_fetchq_worker; end if;
    if exists (select from pg_roles where rolname = 'regress_fetchq_mnt') then drop owned by regress_fetchq_mnt; drop role regress_fetchq_mnt; end if;
    if exists (select from pg_roles where rolname = 'regress_fetchq_app') then drop owned by regress_fetchq_app; drop role regress_fetchq_app; end if;
end $$;
create role regress_fetchq_none;
create role regress_fetchq_worker;
create role regress_fetchq_mnt;
create role regress_fetchq_app;
grant usage on schema test to regress_fetchq_none, regress_fetchq_worker, regress_fetchq_mnt, regress_fetchq_app;
select was_created from fetchq.queue_create('rq_sec');
select fetchq.doc_push('rq_sec', 's1');

-- PUBLIC has no privileges on schemas, tables, and dangerous functions.
select nspname, has_schema_privilege('regress_fetchq_none', oid, 'usage') as usage, has_schema_privilege('regress_fetchq_none', oid, 'create') as "create"
from pg_namespace where nspname in ('fetchq', 'fetchq_data') order by nspname;
select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('fetchq', 'fetchq_data') and c.relkind in ('r', 'v')
    and has_table_privilege('regress_fetchq_none', c.oid, 'select, insert, update, delete, truncate, references, trigger');
select proname from pg_proc
where pronamespace = 'fetchq'::regnamespace and not has_function_privilege('regress_fetchq_none', oid, 'execute') order by proname;
select proname from pg_proc where pronamespace = 'fetchq'::regnamespace and prosecdef;

-- A role without privileges.
set role regress_fetchq_none;
select test.error($$select fetchq.info()$$);
select test.error($$select fetchq.doc_push('rq_sec', 's2')$$);
select test.error($$select * from fetchq.queues$$);
select test.error($$select * from fetchq_data.rq_sec__docs$$);
reset role;
-- With USAGE of the schemas alone, the role can read and change nothing.
grant usage on schema fetchq, fetchq_data to regress_fetchq_none;
set role regress_fetchq_none;
\pset format unaligned
\pset tuples_only on
select c || ' => ' || test.error(c) from unnest(array[
    $$select fetchq.doc_push('rq_sec', 's2')$$, $$select fetchq.doc_push('rq_sec', 0, now(), '(''a'', 0, ''{}'', {DATA})')$$,
    $$select fetchq.doc_append('rq_sec', '{}')$$, $$select fetchq.doc_upsert('rq_sec', 's1', 0, 0, now(), '{}')$$,
    $$select fetchq.doc_pick('rq_sec')$$, $$select fetchq.doc_complete('rq_sec', 's1')$$, $$select fetchq.doc_kill('rq_sec', 's1')$$,
    $$select fetchq.doc_drop('rq_sec', 's1')$$, $$select fetchq.doc_reschedule('rq_sec', 's1', now())$$, $$select fetchq.doc_reject('rq_sec', 's1', 'm', '{}')$$,
    $$select fetchq.log_error('rq_sec', 's1', 'm', '{}')$$, $$select fetchq.queue_create('rq_sec2')$$, $$select fetchq.queue_create('rq_sec')$$, $$select fetchq.queue_drop('rq_sec')$$,
    $$select fetchq.queue_get_id('rq_sec')$$, $$select fetchq.queue_status()$$, $$select fetchq.queue_top('rq_sec', 0, 1, 0)$$, $$select fetchq.queue_truncate('rq_sec')$$, $$select fetchq.queue_truncate_all()$$,
    $$select fetchq.queue_enable_notify('rq_sec')$$, $$select fetchq.queue_drop_indexes('rq_sec')$$, $$select fetchq.queue_create_indexes('rq_sec')$$,
    $$select fetchq.queue_set_max_attempts('rq_sec', 1)$$, $$select fetchq.queue_set_logs_retention('rq_sec', '1h')$$, $$select fetchq.queue_drop_logs('rq_sec')$$, $$select fetchq.queue_drop_metrics('rq_sec')$$,
    $$select fetchq.metric_get('rq_sec')$$, $$select fetchq.metric_get_all()$$, $$select fetchq.metric_compute('rq_sec')$$, $$select fetchq.metric_reset('rq_sec')$$, $$select fetchq.metric_set('rq_sec', 'm', 1)$$,
    $$select fetchq.metric_log_increment('rq_sec', 'm', 1)$$, $$select fetchq.metric_log_pack()$$, $$select fetchq.metric_snap('rq_sec')$$,
    $$select fetchq.mnt()$$, $$select fetchq.mnt_run('rq_sec', 1)$$, $$select fetchq.mnt_run_all(1)$$, $$select fetchq.mnt_job_run()$$, $$select fetchq.mnt_job_pick('1m', 1)$$, $$select fetchq.mnt_job_reschedule(1, '1m')$$,
    $$select fetchq.schedule_create('s', 'rq_sec', '@daily')$$, $$select fetchq.schedule_list()$$, $$select fetchq.schedule_drop('s')$$, $$select fetchq.schedule_run()$$,
    $$select fetchq.schedule_run(1, now())$$, $$select fetchq.schedule_preview('@daily', n => 0)$$,
    $$select fetchq.trace('s1')$$, $$select fetchq.utils_ts_retain('fetchq.queues', 'created_at', 'hour', now(), now())$$, $$select fetchq.destroy_with_terrible_consequences()$$]) c;
reset role;
select test.exact('rq_sec');
\pset tuples_only off
\pset format aligned

-- A worker that pushes, picks and settles in existing queues. These grants are sufficient …
grant usage on schema fetchq, fetchq_data to regress_fetchq_worker;
grant select on fetchq.queues to regress_fetchq_worker;
grant select, insert, update, delete on fetchq_data.rq_sec__docs to regress_fetchq_worker;
grant insert on fetchq_data.rq_sec__logs to regress_fetchq_worker;
create function test.work() returns text language plpgsql as $$
declare
    a text;
begin
    perform fetchq.doc_push('rq_sec', 'w' || i) from generate_series(1, 5) i;
    perform fetchq.doc_push('rq_sec', 0, now(), $l$('w6', 0, '{}', {DATA})$l$);
    a := fetchq.doc_append('rq_sec', '{}');
    perform fetchq.doc_upsert('rq_sec', 'w1', 0, 9, now(), '{}');
    perform fetchq.doc_pick('rq_sec', 0, 20, '5m');
    perform fetchq.doc_complete('rq_sec', 'w1');
    perform fetchq.doc_kill('rq_sec', 'w2');
    perform fetchq.doc_drop('rq_sec', 'w3');
    perform fetchq.doc_reschedule('rq_sec', 'w4', now());
    perform fetchq.doc_reject('rq_sec', 'w5', 'm', '{}');
    perform fetchq.log_error('rq_sec', 'w6', 'm', '{}');
    perform fetchq.doc_pick('rq_sec');
    perform fetchq.queue_top('rq_sec', 0, 10, 0);
    perform fetchq.mnt_run('rq_sec', 10);
    return 'works';
end $$;
-- A new session has no cached state.
\connect -
set role regress_fetchq_worker;
select test.work();
reset role;
select test.exact('rq_sec');
-- … and each of them is necessary.
create function test.needs(what text, privilege text, role text, work text) returns text language plpgsql as $$
declare
    told text;
begin
    begin
        execute format('revoke %s on %s from %I', privilege, what, role);
        execute format('set local role %I', role);
        execute 'select ' || work;
        raise exception 'not needed';
    exception when others then
        told := sqlerrm;
    end;
    return told;
end $$;
set client_min_messages = error;
select what, privilege, test.needs(what, privilege, 'regress_fetchq_worker', 'test.work()') from (values
    ('schema fetchq', 'usage'), ('schema fetchq_data', 'usage'), ('fetchq.queues', 'select'),
    ('fetchq_data.rq_sec__docs', 'select'), ('fetchq_data.rq_sec__docs', 'insert'), ('fetchq_data.rq_sec__docs', 'update'),
    ('fetchq_data.rq_sec__docs', 'delete'), ('fetchq_data.rq_sec__logs', 'insert')) n (what, privilege);
reset client_min_messages;
-- The worker can do nothing else.
set role regress_fetchq_worker;
select test.error($$select fetchq.queue_create('rq_sec2')$$);
select test.error($$select fetchq.queue_drop('rq_sec')$$);
select test.error($$select fetchq.queue_truncate('rq_sec')$$);
select test.error($$select fetchq.queue_set_max_attempts('rq_sec', 99)$$);
select test.error($$select fetchq.metric_log_pack()$$);
select test.error($$select fetchq.mnt_job_run()$$);
-- Notifications need no further privilege.
reset role;
select fetchq.queue_enable_notify('rq_sec');
set role regress_fetchq_worker;
select fetchq.doc_push('rq_sec', 'notified');
reset role;
-- Reading the metrics needs one more grant.
set role regress_fetchq_worker;
select test.error($$select fetchq.metric_get('rq_sec')$$);
reset role;
grant select on fetchq.metrics_live to regress_fetchq_worker;
set role regress_fetchq_worker;
select current_value > 0 as told from fetchq.metric_get('rq_sec', 'cnt');
select queue from fetchq.metric_get_all();
reset role;

-- A role that runs the maintenance of all queues.
grant usage on schema fetchq, fetchq_data to regress_fetchq_mnt;
grant select, update on fetchq.queues, fetchq.jobs, fetchq.schedules to regress_fetchq_mnt;
grant select, insert, update, delete on fetchq.metrics, fetchq.metrics_writes to regress_fetchq_mnt;
grant select on fetchq.counter_events, fetchq.counter_tail, fetchq.metrics_live to regress_fetchq_mnt;
grant select, insert, update on fetchq.counter_segments to regress_fetchq_mnt;
grant select, delete on fetchq.counter_log, fetchq.counter_log_1, fetchq.counter_log_2, fetchq.counter_log_3,
    fetchq.counter_log_4, fetchq.counter_log_5, fetchq.counter_log_6 to regress_fetchq_mnt;
grant select, update on fetchq_data.rq_sec__docs to regress_fetchq_mnt;
grant select, insert, update, delete on fetchq_data.rq_sec__logs, fetchq_data.rq_sec__metrics to regress_fetchq_mnt;
select fetchq.queue_set_metrics_retention('rq_sec', '[{"retain": "hour", "from": "2h", "to": "1h"}]');
select fetchq.metric_log_increment('rq_sec', 'mine', 1);
update fetchq.jobs set next_iteration = '2970-01-01' where queue = '*';
set role regress_fetchq_mnt;
select processed, packed > 0 as packed from fetchq.mnt();
select success, inserts > 0 as snapped from fetchq.metric_snap('rq_sec');
reset role;
select test.exact('rq_sec');

-- An application that creates queues owns them, and can use every function on them.
grant usage on schema fetchq to regress_fetchq_app;
grant usage, create on schema fetchq_data to regress_fetchq_app;
grant select, insert, update, delete on fetchq.queues, fetchq.jobs, fetchq.metrics, fetchq.metrics_writes to regress_fetchq_app;
grant select, delete on fetchq.schedules to regress_fetchq_app;
grant select on fetchq.counter_events, fetchq.counter_tail, fetchq.metrics_live to regress_fetchq_app;
grant select, insert, update on fetchq.counter_segments to regress_fetchq_app;
grant select, delete on fetchq.counter_log, fetchq.counter_log_1, fetchq.counter_log_2, fetchq.counter_log_3,
    fetchq.counter_log_4, fetchq.counter_log_5, fetchq.counter_log_6 to regress_fetchq_app;
create function test.manage() returns text language plpgsql as $$
begin
    perform fetchq.queue_create('rq_app');
    perform fetchq.queue_create('rq_app');
    perform fetchq.queue_enable_notify('rq_app');
    perform fetchq.doc_push('rq_app', 's1');
    perform fetchq.doc_pick('rq_app');
    perform fetchq.doc_reject('rq_app', 's1', 'm', '{}');
    perform fetchq.queue_set_max_attempts('rq_app', 3);
    perform fetchq.queue_set_current_version('rq_app', 1);
    perform fetchq.queue_drop_indexes('rq_app');
    perform fetchq.queue_create_indexes('rq_app');
    perform fetchq.metric_set('rq_app', 'mine', 1);
    perform fetchq.metric_log_increment('rq_app', 'mine', 1);
    perform fetchq.metric_log_pack();
    perform fetchq.metric_snap('rq_app');
    perform fetchq.metric_reset('rq_app');
    perform fetchq.mnt_run('rq_app', 10);
    perform fetchq.queue_drop_logs('rq_app', '1h');
    perform fetchq.queue_truncate('rq_app', true);
    perform fetchq.queue_disable_notify('rq_app');
    perform fetchq.queue_drop('rq_app');
    return 'works';
end $$;
set role regress_fetchq_app;
select test.manage();
select test.error($$select fetchq.queue_drop('rq_sec')$$);
select test.error($$select fetchq.doc_push('rq_sec', 'mine')$$);
select test.error($$select fetchq.destroy_with_terrible_consequences()$$);
reset role;
select what, privilege, test.needs(what, privilege, 'regress_fetchq_app', 'test.manage()') from (values
    ('schema fetchq', 'usage'), ('schema fetchq_data', 'usage'), ('schema fetchq_data', 'create'),
    ('fetchq.queues', 'select'), ('fetchq.queues', 'insert'), ('fetchq.queues', 'update'), ('fetchq.queues', 'delete'),
    ('fetchq.jobs', 'select'), ('fetchq.jobs', 'insert'), ('fetchq.jobs', 'update'), ('fetchq.jobs', 'delete'),
    ('fetchq.schedules', 'select'), ('fetchq.schedules', 'delete'),
    ('fetchq.metrics', 'select'), ('fetchq.metrics', 'insert'), ('fetchq.metrics', 'update'), ('fetchq.metrics', 'delete'),
    ('fetchq.metrics_writes', 'select'), ('fetchq.metrics_writes', 'insert'), ('fetchq.metrics_writes', 'update'), ('fetchq.metrics_writes', 'delete'),
    ('fetchq.counter_log', 'select'), ('fetchq.counter_log', 'delete'),
    ('fetchq.counter_log_1', 'select'), ('fetchq.counter_log_1', 'delete'),
    ('fetchq.counter_segments', 'select'), ('fetchq.counter_tail', 'select'),
    ('fetchq.counter_events', 'select'), ('fetchq.metrics_live', 'select')) n (what, privilege);

-- The role that manages schedules writes their table; the role that runs them writes documents.
grant usage on schema fetchq, fetchq_data to regress_fetchq_worker;
grant select, update on fetchq.queues to regress_fetchq_worker;
grant select, insert, update, delete on fetchq.schedules to regress_fetchq_worker;
grant select, insert on fetchq_data.rq_sec__docs to regress_fetchq_worker;
set role regress_fetchq_worker;
select was_created from fetchq.schedule_create('sec', 'rq_sec', '@daily', starts_at => '2100-01-01');
update fetchq.schedules set next_tick = '2020-01-01', due_at = '2020-01-01' where name = 'sec';
select * from fetchq.schedule_run();
select test.error($$select fetchq.schedule_run(1, now())$$);
select fetchq.schedule_pause('sec'), fetchq.schedule_drop('sec');
reset role;
-- A role that runs the jobs without the privileges for schedules gets a message.
revoke all on fetchq.schedules from regress_fetchq_mnt;
set role regress_fetchq_mnt;
select success from fetchq.mnt_job_run();
reset role;

-- The broad grant: everything in both schemas, for a role that uses the queues of other roles.
grant usage on schema fetchq, fetchq_data to regress_fetchq_none;
grant select, insert, update, delete on all tables in schema fetchq, fetchq_data to regress_fetchq_none;
grant usage on all sequences in schema fetchq, fetchq_data to regress_fetchq_none;
set role regress_fetchq_none;
select processed >= 0 as ran from fetchq.mnt();
select fetchq.doc_push('rq_sec', 'broad');
select count(*) from fetchq.metric_reset('rq_sec');
select test.error($$select fetchq.destroy_with_terrible_consequences()$$);
reset role;
select test.exact('rq_sec');

update fetchq.jobs set next_iteration = now();
select was_dropped from fetchq.queue_drop('rq_sec');
drop function test.work(), test.manage(), test.needs(text, text, text, text);
drop owned by regress_fetchq_none, regress_fetchq_worker, regress_fetchq_mnt, regress_fetchq_app;
drop role regress_fetchq_none, regress_fetchq_worker, regress_fetchq_mnt, regress_fetchq_app;
