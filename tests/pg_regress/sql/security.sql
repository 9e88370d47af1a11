-- Rights on queues: what each kind of grant allows, and what nobody needs.
do $$ declare r text; begin
    foreach r in array array['none', 'reader', 'producer', 'worker', 'manager', 'owner', 'member', 'Odd "name"'] loop
        if exists (select from pg_roles where rolname = 'regress_fetchq_' || r) then
            execute format('drop owned by %1$I; drop role %1$I', 'regress_fetchq_' || r);
        end if;
    end loop;
end $$;
create role regress_fetchq_none;
create role regress_fetchq_reader;
create role regress_fetchq_producer;
create role regress_fetchq_worker;
create role regress_fetchq_manager;
create role regress_fetchq_owner;
create role regress_fetchq_member in role regress_fetchq_reader;
create role "regress_fetchq_Odd ""name""";

-- PUBLIC has no privileges on schemas and tables, and cannot call what concerns the whole database.
select nspname, has_schema_privilege('regress_fetchq_none', oid, 'usage') as usage, has_schema_privilege('regress_fetchq_none', oid, 'create') as "create"
from pg_namespace where nspname in ('fetchq', 'fetchq_data') order by nspname;
select n.nspname, c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('fetchq', 'fetchq_data') and c.relkind in ('r', 'v')
    and has_table_privilege('regress_fetchq_none', c.oid, 'select, insert, update, delete, truncate, references, trigger')
order by c.relname;
select proname from pg_proc
where pronamespace = 'fetchq'::regnamespace and not has_function_privilege('regress_fetchq_none', oid, 'execute') order by proname;
select proname from pg_proc where pronamespace = 'fetchq'::regnamespace and prosecdef;
grant usage on schema test to regress_fetchq_none;
set role regress_fetchq_none;
select test.error($$select fetchq.info()$$);
select test.error($$select fetchq.doc_push('rq_sec', 's2')$$);
select test.error($$select * from fetchq.queues$$);
reset role;

-- An application that creates queues needs USAGE on both schemas and EXECUTE on queue_create. It
-- owns what fetchq creates for it, and cannot create anything beside that.
grant usage on schema fetchq, fetchq_data, test to regress_fetchq_owner, regress_fetchq_none;
set role regress_fetchq_owner;
select test.error($$select fetchq.queue_create('rq_sec')$$);
reset role;
grant execute on function fetchq.queue_create to regress_fetchq_owner;
set role regress_fetchq_owner;
select was_created from fetchq.queue_create('rq_sec');
select was_created from fetchq.queue_create('rq_sec_letters');
select was_created from fetchq.queue_create('rq_sec');
select from fetchq.queue_configure('rq_sec', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}');
select test.error($$create table fetchq_data.rq_plant__history (id int)$$);
select test.error($$create index on fetchq_data.rq_sec__docs (payload)$$);
select test.error($$create view fetchq.queues_too as select 1$$);
reset role;
select c.relname, c.relkind, pg_get_userbyid(c.relowner) as owner from pg_class c
where c.relnamespace = 'fetchq_data'::regnamespace and c.relname ~ '^rq_sec__' order by c.relname;

-- Grants by queue.
grant usage on schema test to regress_fetchq_reader, regress_fetchq_producer, regress_fetchq_worker, regress_fetchq_manager, regress_fetchq_member;
set role regress_fetchq_owner;
select fetchq.queue_grant('rq_sec', 'regress_fetchq_reader', 'reader'), fetchq.queue_grant('rq_sec', 'regress_fetchq_producer', 'producer'),
    fetchq.queue_grant('rq_sec', 'regress_fetchq_worker', 'worker'), fetchq.queue_grant('rq_sec', 'regress_fetchq_manager', 'manager');
-- The second time nothing changes, and a wider kind includes the narrower ones.
select fetchq.queue_grant('rq_sec', 'regress_fetchq_reader', 'reader'), fetchq.queue_grant('rq_sec', 'regress_fetchq_worker', 'producer'),
    fetchq.queue_grant('rq_sec', 'regress_fetchq_manager', 'worker');
select fetchq.queue_grant('rq_sec', 'regress_fetchq_Odd "name"', 'reader'), fetchq.queue_grant('rq_sec', 'regress_fetchq_Odd "name"', 'producer');
select * from fetchq.queue_grants('rq_sec');
select test.error($$select fetchq.queue_revoke('rq_sec', 'regress_fetchq_manager', 'worker')$$);
select fetchq.queue_revoke('rq_sec', 'regress_fetchq_Odd "name"', 'reader'), fetchq.queue_revoke('rq_sec', 'regress_fetchq_Odd "name"', 'worker');
select queue, role, kind from fetchq.queue_grants() where role like '%Odd%';
select fetchq.queue_revoke('rq_sec', 'regress_fetchq_Odd "name"', 'producer');
select test.error(c) from unnest(array[
    $$select fetchq.queue_grant('rq_sec', 'regress_fetchq_absent', 'reader')$$, $$select fetchq.queue_grant('rq_sec', 'public', 'reader')$$,
    $$select fetchq.queue_grant('rq_sec', 'regress_fetchq_reader', 'owner')$$, $$select fetchq.queue_grant('rq_nope', 'regress_fetchq_reader', 'reader')$$,
    $$select fetchq.queue_revoke('rq_nope', 'regress_fetchq_reader', 'reader')$$, $$select * from fetchq.queue_grants('rq_nope')$$,
    $$select fetchq.queue_has_right('rq_sec', 'king')$$]) c;
reset role;
-- The exact privileges of each kind.
select split_part(g.rolname, '_', 3) as role, c.relname,
    string_agg(lower(a.privilege_type), ', ' order by a.privilege_type) as privileges
from pg_class c cross join aclexplode(c.relacl) a join pg_roles g on g.oid = a.grantee
where c.relnamespace = 'fetchq_data'::regnamespace and c.relname ~ '^rq_sec__' and a.grantee <> c.relowner
group by g.rolname, c.relname order by g.rolname, c.relname;
select split_part(g.rolname, '_', 3) as role, c.relname, lower(a.privilege_type) as privilege, string_agg(t.attname, ', ' order by t.attnum) as columns
from pg_class c join pg_attribute t on t.attrelid = c.oid cross join aclexplode(t.attacl) a join pg_roles g on g.oid = a.grantee
where c.relnamespace = 'fetchq_data'::regnamespace and c.relname ~ '^rq_sec__'
group by g.rolname, c.relname, a.privilege_type order by 1, 2, 3;

-- What each kind may call. A call is undone.
set client_min_messages = error;
select fetchq.doc_push('rq_sec', s) from unnest('{p1,p2,k1,a1}'::text[]) s;
update fetchq_data.rq_sec__docs set status = -1 where subject = 'k1';
update fetchq_data.rq_sec__docs set status = 2, lease = 8, attempts = 1, next_iteration = now() + interval '1 hour' where subject = 'a1';
-- The counters, by which lease_list() finds the queues with leases, do not know of plain SQL.
do $$ begin perform fetchq.metric_reset('rq_sec'); end $$;
select fetchq.schedule_create('rq_sec_s', 'rq_sec', '@daily', starts_at => '2100-01-01');
create function test.call(call text, role name) returns text language plpgsql as $$
declare
    state text;
begin
    begin
        execute format('set local role %I', role);
        execute call;
        raise exception 'undo' using errcode = 'ZZ000';
    exception when others then
        get stacked diagnostics state = returned_sqlstate;
    end;
    return case state when 'ZZ000' then 'yes' when '42501' then '-' else state end;
end $$;
create table test.calls (n int generated always as identity, call text);
insert into test.calls (call) values
    ('doc_push(''rq_sec'', ''n'')'), ('doc_push(''rq_sec'', ''n'', ''{}'', now())'), ('doc_push(''rq_sec'', ''n'', 0, 0, now(), ''{}'')'), ('doc_push(''rq_sec'', 0, now(), ''(''''n'''', 0, ''''{}'''', {DATA})'')'),
    ('doc_append(''rq_sec'', ''{}'')'), ('doc_append_many(''rq_sec'', array[''{}'']::jsonb[])'),
    ('doc_upsert(''rq_sec'', ''p1'', 0, 0, now(), ''{}'')'),
    ('doc_put(''rq_sec'', ''p1'', ''{}'', mode => ''ignore'')'), ('doc_put(''rq_sec'', ''p1'', ''{}'', mode => ''replace'')'), ('doc_put(''rq_sec'', ''k1'', ''{}'', mode => ''reset'')'), ('doc_put(''rq_sec'', ''p1'', ''{}'', mode => ''merge'')'),
    ('doc_put_many(''rq_sec'', ''[{"subject": "p1"}]'')'),
    ('doc_pick(''rq_sec'')'), ('doc_lease(''rq_sec'')'), ('doc_lease_any(array[''rq_sec''])'), ('docs_next_any(array[''rq_sec''])'), ('doc_pop(''rq_sec'')'),
    ('doc_complete(''rq_sec'', ''a1'')'), ('doc_complete_many(''rq_sec'', array[''a1''])'), ('doc_kill(''rq_sec'', ''a1'')'), ('doc_drop(''rq_sec'', ''a1'')'), ('doc_drop_many(''rq_sec'', array[''a1''])'),
    ('doc_reschedule(''rq_sec'', ''a1'', now())'), ('doc_reschedule_many(''rq_sec'', array[''a1''], now())'), ('doc_snooze(''rq_sec'', ''a1'', now())'), ('doc_reject(''rq_sec'', ''a1'', ''m'', ''{}'')'),
    ('log_error(''rq_sec'', ''a1'', ''m'', ''{}'')'), ('doc_extend(''rq_sec'', ''a1'', ''1 hour'', 8)'), ('docs_extend(''rq_sec'', ''[{"subject": "a1", "lease": 8}]'')'), ('doc_cancel(''rq_sec'', ''p1'')'), ('doc_revive(''rq_sec'', ''k1'')'),
    ('doc_get(''rq_sec'', ''p1'')'), ('docs_list(''rq_sec'')'), ('doc_errors(''rq_sec'', ''p1'')'), ('queue_stats(''rq_sec'')'),
    ('docs_retry(''rq_sec'', ''{}'')'), ('doc_set_due(''rq_sec'', ''p1'', now())'), ('doc_set_priority(''rq_sec'', ''p1'', 1)'), ('docs_set_due(''rq_sec'', now(), filter => ''{"all": true}'')'), ('metric_history(''rq_sec'')'), ('schedule_tick(''rq_sec_s'')'), ('docs_kill(''rq_sec'', ''{"all": true}'')'), ('docs_drop(''rq_sec'', ''{"all": true}'')'), ('docs_set_priority(''rq_sec'', 1, ''{}'')'), ('docs_move(''rq_sec'', ''rq_sec_letters'', ''{"all": true}'')'), ('queue_redrive(''rq_sec'')'),
    ('queue_get_id(''rq_sec'')'), ('queue_status(''rq_sec'')'), ('queue_top(''rq_sec'', 0, 1, 0)'), ('queue_history(''rq_sec'')'), ('queue_grants(''rq_sec'')'), ('queue_drop_version(''rq_sec'', 1)'), ('ready_floors(''rq_sec'')'), ('worker_stop_requested(''rq_sec'', ''w'', now())'),
    ('metric_get(''rq_sec'')'), ('metric_get(''rq_sec'', ''cnt'')'), ('metric_get_common(''rq_sec'')'), ('metric_compute(''rq_sec'')'),
    ('metric_increment(''rq_sec'', ''m'', 1)'), ('metric_log_increment(''rq_sec'', ''m'', 1)'), ('metric_log_decrement(''rq_sec'', ''m'', 1)'), ('metric_set(''rq_sec'', ''m'', 1)'), ('metric_log_set(''rq_sec'', ''m'', 1)'), ('metric_reset(''rq_sec'')'),
    ('metric_snap(''rq_sec'')'), ('metric_snap(''rq_sec'', ''cnt'')'), ('metric_snap(''rq_sec'', ''["cnt"]''::jsonb)'),
    ('mnt_run(''rq_sec'', 1)'), ('mnt_make_pending(''rq_sec'', 1)'), ('mnt_reschedule_orphans(''rq_sec'', 1)'), ('mnt_mark_dead(''rq_sec'', 1)'),
    ('mnt_job_reschedule((select id from test.job), ''1h'')'),
    ('queue_pause(''rq_sec'')'), ('queue_resume(''rq_sec'')'), ('queue_enable_notify(''rq_sec'')'), ('queue_disable_notify(''rq_sec'')'),
    ('queue_set_max_attempts(''rq_sec'', 3)'), ('queue_set_current_version(''rq_sec'', 0)'), ('queue_set_logs_retention(''rq_sec'', ''1h'')'), ('queue_set_metrics_retention(''rq_sec'', ''[]'')'),
    ('queue_settings(''rq_sec'')'), ('queue_configure(''rq_sec'', ''{}'')'), ('queue_configure(''rq_sec'', ''{"retry": {"base": "1s"}}'')'), ('queue_configure(''rq_sec'', ''{"history": {"completed": "1h"}}'')'), ('queue_configure(''rq_sec'', ''{"dead_letter": null}'')'), ('queue_configure(''rq_sec'', ''{"dead_letter": "rq_sec_letters"}'')'), ('queue_configure(''rq_sec'', ''{"max_active": 5}'')'), ('queue_configure(''rq_sec'', ''{"rate": {"picks": 5, "per": "1s"}}'')'), ('queue_configure(''rq_sec'', ''{"ordered": true}'')'), ('queue_configure(''rq_sec'', ''{"notify": true}'')'),
    ('queue_create_indexes(''rq_sec'')'), ('queue_create_indexes(''rq_sec'', 0, 1)'), ('queue_drop_indexes(''rq_sec'')'), ('queue_drop_logs(''rq_sec'')'), ('queue_drop_logs(''rq_sec'', ''1h''::text)'), ('queue_drop_logs(''rq_sec'', now())'), ('queue_drop_metrics(''rq_sec'')'), ('queue_drop_metrics(''rq_sec'', ''[]''::jsonb)'),
    ('queue_trim_history(''rq_sec'')'), ('queue_drop_history(''rq_sec'', ''{"all": true}'')'), ('queue_truncate(''rq_sec'')'), ('queue_truncate(''rq_sec'', true)'),
    ('schedule_create(''rq_sec_n'', ''rq_sec'', ''@daily'')'), ('schedule_create(''rq_sec_s'', ''rq_sec'', ''@hourly'', replace => true)'), ('schedule_pause(''rq_sec_s'')'), ('schedule_resume(''rq_sec_s'')'), ('schedule_drop(''rq_sec_s'')'), ('schedules_sync(''shop'', ''[{"name": "rq_sec_d", "queue": "rq_sec", "schedule": "@daily"}]'')'),
    ('queue_grant(''rq_sec'', ''regress_fetchq_member'', ''worker'')'), ('queue_revoke(''rq_sec'', ''regress_fetchq_reader'', ''reader'')'), ('queue_drop(''rq_sec'')'), ('queue_create(''rq_sec2'')');
create view test.job as select id from fetchq.jobs where queue = 'rq_sec' and task = 'mnt';
grant select on test.job to public;
select c.call, test.call('select fetchq.' || c.call, 'regress_fetchq_none') as none, test.call('select fetchq.' || c.call, 'regress_fetchq_reader') as reader,
    test.call('select fetchq.' || c.call, 'regress_fetchq_producer') as producer, test.call('select fetchq.' || c.call, 'regress_fetchq_worker') as worker,
    test.call('select fetchq.' || c.call, 'regress_fetchq_manager') as manager, test.call('select fetchq.' || c.call, 'regress_fetchq_owner') as owner
from test.calls c order by c.n;
-- No function is missing here, except those for all queues or for none.
select distinct p.proname from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
    and not exists (select from test.calls c where c.call like p.proname || '(%') order by 1;

-- What concerns all queues is done for those on which the caller has the right.
create function test.seen(role name) returns text language plpgsql as $$
declare
    seen text;
begin
    execute format('set local role %I', role);
    seen := concat_ws(' ', (select count(*) from fetchq.queue_status() where name = 'rq_sec'), (select count(*) from fetchq.metric_get_all() where queue = 'rq_sec'),
        (select count(*) from fetchq.metric_compute_all() where queue = 'rq_sec'), (select sign(current_value) from fetchq.metric_get_total('cnt')),
        (select count(distinct queue) from fetchq.metrics_live where queue = 'rq_sec'), (select count(*) from fetchq.schedule_list() where queue = 'rq_sec'),
        (select count(*) from fetchq.lease_list() where queue = 'rq_sec'), (select count(distinct queue) from fetchq.queue_grants() where queue = 'rq_sec'),
        (select count(*) from fetchq.trace('p1')), (select count(*) from fetchq.mnt_run_all(0)), (select count(*) > 1 from fetchq.mnt_job_pick('1s', 100)),
        fetchq.queue_has_right('rq_sec'), fetchq.queue_has_right('rq_sec', 'reader'), fetchq.queue_has_right('rq_sec', 'producer'),
        fetchq.queue_has_right('rq_sec', 'worker'), fetchq.queue_has_right('rq_sec', 'manager'), fetchq.queue_has_right('rq_sec', 'owner'), fetchq.queue_has_right('rq_nope'));
    raise exception '%', seen;
exception when others then
    return sqlerrm;
end $$;
update fetchq.jobs set next_iteration = now() - interval '1 minute';
select r, test.seen('regress_fetchq_' || r) from unnest('{none,reader,producer,worker,manager,owner,member}'::text[]) with ordinality r (r, n) order by n;
-- Those for one role at a time, with what they have done.
set role regress_fetchq_none;
select processed, packed from fetchq.mnt();
select test.error($$select fetchq.metric_log_pack()$$);
select test.error($$select fetchq.schedule_run_at(1, now())$$);
select test.error($$select fetchq.destroy_with_terrible_consequences()$$);
select test.error($$select fetchq.utils_ts_retain('fetchq.queues', 'created_at', 'hour', now(), now())$$);
select success, processed from fetchq.mnt_job_run(100);
select * from fetchq.schedule_run(10);
select fetchq.queue_truncate_all();
select count(*) from fetchq.metric_reset_all();
select fetchq.worker_release('nobody');
reset role;
select count(*) from fetchq_data.rq_sec__docs;
set role regress_fetchq_manager;
select processed > 2 as processed, packed from fetchq.mnt();
reset role;
-- A role that may call metric_log_pack() packs the counters.
grant execute on function fetchq.metric_log_pack() to regress_fetchq_none;
set role regress_fetchq_none;
select fetchq.metric_log_pack() >= 0 as packed;
reset role;
revoke execute on function fetchq.metric_log_pack() from regress_fetchq_none;
reset client_min_messages;
select test.exact('rq_sec');

-- The error names the role, the queue, and what to run.
set role regress_fetchq_reader;
select test.error($$select fetchq.queue_pause('rq_sec')$$);
select test.error($$select fetchq.mnt_run('rq_sec', 1)$$);
select test.error($$select fetchq.queue_drop('rq_sec')$$);
set role regress_fetchq_none;
select test.error($$select fetchq.doc_pick('rq_sec')$$);
reset role;

-- A trigger that fires during a statement of the library has none of its rights, even if it runs
-- the same text.
create function test.steal() returns trigger language plpgsql as $$ begin
    perform id from fetchq.queues where name operator(pg_catalog.=) 'rq_sec';
    return new;
end $$;
create trigger steal before insert or update on fetchq_data.rq_sec__docs for each row execute function test.steal();
set role regress_fetchq_owner;
select test.error($$select fetchq.doc_push('rq_sec', 'stolen')$$);
select test.error($$select fetchq.doc_pick('rq_sec')$$);
select test.error($$select id from fetchq.queues where name operator(pg_catalog.=) 'rq_sec'$$);
reset role;
drop trigger steal on fetchq_data.rq_sec__docs;
drop function test.steal();

-- Workers of a queue need no rights on its dead-letter queue.
set role regress_fetchq_owner;
select from fetchq.queue_configure('rq_sec', '{"dead_letter": "rq_sec_letters"}');
select role, kind from fetchq.queue_grants('rq_sec_letters') where is_direct;
reset role;
set role regress_fetchq_worker;
select fetchq.doc_kill('rq_sec', 'a1');
reset role;
select subject, origin->>'queue' as queue from fetchq_data.rq_sec_letters__docs;
-- A manager cannot point a queue at one into which it may not push.
select was_created from fetchq.queue_create('rq_sec_foreign');
set role regress_fetchq_manager;
select test.error($$select from fetchq.queue_configure('rq_sec', '{"dead_letter": "rq_sec_foreign"}')$$);
reset role;

-- A history that comes later has the rights that fit those on the documents.
select was_created from fetchq.queue_create('rq_sec_later');
select fetchq.queue_grant('rq_sec_later', 'regress_fetchq_' || k, k) from unnest('{reader,producer,worker,manager}'::text[]) k;
select from fetchq.queue_configure('rq_sec_later', '{"history": {"completed": "1 day"}}');
select split_part(g.rolname, '_', 3) as role, string_agg(lower(a.privilege_type), ', ' order by a.privilege_type) as privileges
from pg_class c cross join aclexplode(c.relacl) a join pg_roles g on g.oid = a.grantee
where c.oid = 'fetchq_data.rq_sec_later__history'::regclass and a.grantee <> c.relowner group by g.rolname order by g.rolname;
select fetchq.queue_revoke('rq_sec_later', 'regress_fetchq_' || k, k) from unnest('{reader,producer,worker,manager}'::text[]) k;
select count(*) from pg_class c, aclexplode(c.relacl) a where c.relname ~ '^rq_sec_later__' and a.grantee <> c.relowner;
select count(*) from pg_attribute t where t.attrelid = 'fetchq_data.rq_sec_later__docs'::regclass and t.attacl is not null;

-- A manager who does not own the queue defines triggers and indexes as its owner. A table with a
-- type of a user gets no index from another role.
set role regress_fetchq_manager;
select fetchq.queue_enable_notify('rq_sec');
select from fetchq.queue_configure('rq_sec', '{"max_active": 5, "ordered": true}');
select fetchq.queue_drop_indexes('rq_sec'), fetchq.queue_create_indexes('rq_sec');
reset role;
select indexrelid::regclass, pg_get_userbyid(relowner) as owner from pg_index join pg_class on oid = indexrelid where indrelid = 'fetchq_data.rq_sec__docs'::regclass order by 1;
create domain test.number as bigint;
alter table fetchq_data.rq_sec__docs add column mine test.number;
set role regress_fetchq_owner;
select fetchq.queue_drop_indexes('rq_sec');
select test.error($$select fetchq.queue_create_indexes('rq_sec')$$);
reset role;
select fetchq.queue_create_indexes('rq_sec');

set client_min_messages = error;
set role regress_fetchq_owner;
select was_dropped from fetchq.queue_drop('rq_sec');
select was_dropped from fetchq.queue_drop('rq_sec_letters');
select was_dropped from fetchq.queue_drop('rq_sec_foreign');
reset role;
select was_dropped from fetchq.queue_drop('rq_sec_foreign');
select was_dropped from fetchq.queue_drop('rq_sec_later');
drop domain test.number;
drop view test.job;
drop table test.calls;
drop function test.call(text, name), test.seen(name);
drop owned by regress_fetchq_none, regress_fetchq_reader, regress_fetchq_producer, regress_fetchq_worker, regress_fetchq_manager, regress_fetchq_owner, regress_fetchq_member, "regress_fetchq_Odd ""name""";
drop role regress_fetchq_none, regress_fetchq_reader, regress_fetchq_producer, regress_fetchq_worker, regress_fetchq_manager, regress_fetchq_owner, regress_fetchq_member, "regress_fetchq_Odd ""name""";
