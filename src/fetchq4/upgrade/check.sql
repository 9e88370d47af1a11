-- The upgrade from fetchq 4, part 1 of 4: the check. It finds everything that cannot be carried over,
-- and fails with the list before anything has changed. build.rs puts the parts together.
--
-- Settings of the session that it reads:
--   fetchq_upgrade.dry_run = on          report, and fail in any case
--   fetchq_upgrade.allow_sessions = on   upgrade although other sessions are connected
--
-- No function of fetchq 4 is called, and no other code that belongs to a user: the script runs as a
-- superuser. That is why the check looks at the catalog and at rows only, and at the rows of a table
-- only when it knows that planning the query runs no code of a user: see strangers_code().

set local search_path = pg_catalog, pg_temp;

do $$
begin
    if not (select r.rolsuper from pg_roles r where r.rolname = current_user) then
        raise exception 'only a superuser can upgrade fetchq 4'
            using errcode = 'insufficient_privilege', hint = 'Connect as a superuser. The clients need no more rights than before.';
    end if;
    -- With the snapshot of the first statement, the copies would leave out what was committed while the
    -- script waited for its locks.
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'fetchq 4 cannot be upgraded in a transaction that is %', upper(current_setting('transaction_isolation'))
            using errcode = 'feature_not_supported', hint = 'Run first: set default_transaction_isolation = ''read committed''';
    end if;
end $$;

-- What the parts hand on to one another. The last part drops it.
create schema fetchq_upgrade;
create table fetchq_upgrade.problems (
    id int generated always as identity,
    problem text not null,
    remedy text not null
);
-- The objects of fetchq 4 itself, and the views that are made anew.
create table fetchq_upgrade.objects (
    classid oid not null,
    objid oid not null,
    primary key (classid, objid)
);
create table fetchq_upgrade.queues (
    id int primary key,
    name text not null,
    docs oid not null,
    logs oid not null,
    series oid not null,
    documents bigint not null default 0,
    bytes bigint not null
);
create table fetchq_upgrade.views (
    view oid primary key,
    depth int not null default 0
);
-- What is made anew: the statement that makes it, in the order of the steps.
create table fetchq_upgrade.statements (
    id int generated always as identity,
    step text not null check (step in ('index', 'view', 'trigger', 'comment')),
    sql text not null
);
-- Triggers of other tables that call a function of fetchq 4.
create table fetchq_upgrade.foreign_triggers (
    name name not null,
    tbl oid not null
);

-- What belongs to a role that is no superuser, and runs when a query of the table is planned, or a row
-- written: the planner computes functions of constants in indexes, statistics and constraints, with the
-- rights of whoever runs the query, and the tables belong to another role afterwards. A function of a
-- superuser is as trusted as the superuser, and so are extensions.
create function fetchq_upgrade.strangers_code(tbl oid) returns table (problem text, remedy text)
language sql as $$
    with objects as (
        select 'pg_class'::regclass as classid, i.indexrelid as objid, 'index' as kind, i.indexrelid::regclass::text as name
        from pg_index i where i.indrelid = $1
        union all
        select 'pg_statistic_ext'::regclass, s.oid, 'statistics', format('%I.%I', s.stxnamespace::regnamespace::name, s.stxname)
        from pg_statistic_ext s where s.stxrelid = $1
        union all
        select 'pg_constraint'::regclass, k.oid, format('constraint %I on', k.conname), k.conrelid::regclass::text
        from pg_constraint k where k.conrelid = $1
        union all
        select 'pg_attrdef'::regclass, d.oid, format('default of column %I of', a.attname), d.adrelid::regclass::text
        from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum where d.adrelid = $1
    ), code as (
        select p.oid, 'pg_proc'::regclass as classid, p.proowner as owner from pg_proc p
        union all
        select o.oid, 'pg_operator'::regclass, u.owner from pg_operator o left join pg_proc p on p.oid = o.oprcode
        cross join unnest(array[o.oprowner, p.proowner]) as u (owner)
        union all
        select y.oid, 'pg_type'::regclass, y.typowner from pg_type y
    )
    select format('%s calls %s, which is of role %I.', pg_describe_object(o.classid, o.objid, 0), pg_describe_object(c.classid, c.oid, 0), r.rolname),
        format('The upgrade would run it as a superuser. Drop it, and create it again after the upgrade: %s',
            case when o.kind ~ '^constraint' then format('alter table %s drop %s', o.name, replace(o.kind, ' on', ''))
                when o.kind ~ '^default' then format('alter table %s alter %s drop default', o.name, regexp_replace(o.kind, '^default of (.*) of$', '\1'))
                else format('drop %s %s', o.kind, o.name) end)
    from objects o
    join pg_depend d on (d.classid, d.objid) = (o.classid, o.objid)
    join code c on (c.classid, c.oid) = (d.refclassid, d.refobjid)
    join pg_roles r on r.oid = c.owner and not r.rolsuper
    group by o.classid, o.objid, o.kind, o.name, c.classid, c.oid, r.rolname
    order by o.classid, o.objid, c.classid, c.oid
$$;

-- The functions of fetchq 4.0.0 to 4.0.2. Others in the schema belong to a user.
create function fetchq_upgrade.own_functions() returns setof text language sql as $$
    select unnest(array[
        'fetchq.destroy_with_terrible_consequences()',
        'fetchq.doc_append(character varying,jsonb)',
        'fetchq.doc_append(character varying,jsonb,integer,integer)',
        'fetchq.doc_complete(character varying,character varying)',
        'fetchq.doc_complete(character varying,character varying,jsonb)',
        'fetchq.doc_drop(character varying,character varying)',
        'fetchq.doc_kill(character varying,character varying)',
        'fetchq.doc_kill(character varying,character varying,jsonb)',
        'fetchq.doc_pick(character varying)',
        'fetchq.doc_pick(character varying,character varying)',
        'fetchq.doc_pick(character varying,integer)',
        'fetchq.doc_pick(character varying,integer,integer,character varying)',
        'fetchq.doc_push(character varying,character varying)',
        'fetchq.doc_push(character varying,character varying,integer,integer,timestamp with time zone,jsonb)',
        'fetchq.doc_push(character varying,character varying,jsonb)',
        'fetchq.doc_push(character varying,character varying,jsonb,timestamp with time zone)',
        'fetchq.doc_push(character varying,integer,timestamp with time zone,character varying)',
        'fetchq.doc_reject(character varying,character varying,character varying,jsonb)',
        'fetchq.doc_reject(character varying,character varying,character varying,jsonb,character varying)',
        'fetchq.doc_reschedule(character varying,character varying,timestamp with time zone)',
        'fetchq.doc_reschedule(character varying,character varying,timestamp with time zone,jsonb)',
        'fetchq.doc_upsert(character varying,character varying,integer,integer,timestamp with time zone,jsonb)',
        'fetchq.info()',
        'fetchq.init()',
        'fetchq.log_error(character varying,character varying,character varying,jsonb)',
        'fetchq.log_error(character varying,character varying,character varying,jsonb,character varying)',
        'fetchq.metric_compute(character varying)',
        'fetchq.metric_compute_all()',
        'fetchq.metric_get(character varying)',
        'fetchq.metric_get(character varying,character varying)',
        'fetchq.metric_get_all()',
        'fetchq.metric_get_common(character varying)',
        'fetchq.metric_get_total(character varying)',
        'fetchq.metric_increment(character varying,character varying,integer)',
        'fetchq.metric_log_decrement(character varying,character varying,integer)',
        'fetchq.metric_log_increment(character varying,character varying,integer)',
        'fetchq.metric_log_pack()',
        'fetchq.metric_log_set(character varying,character varying,integer)',
        'fetchq.metric_reset(character varying)',
        'fetchq.metric_reset_all()',
        'fetchq.metric_set(character varying,character varying,integer)',
        'fetchq.metric_snap(character varying)',
        'fetchq.metric_snap(character varying,character varying)',
        'fetchq.metric_snap(character varying,jsonb)',
        'fetchq.mnt()',
        'fetchq.mnt(character varying)',
        'fetchq.mnt_job_pick(character varying,integer)',
        'fetchq.mnt_job_reschedule(integer,character varying)',
        'fetchq.mnt_job_run()',
        'fetchq.mnt_job_run(character varying,integer)',
        'fetchq.mnt_job_run(integer)',
        'fetchq.mnt_make_pending(character varying,integer)',
        'fetchq.mnt_mark_dead(character varying,integer)',
        'fetchq.mnt_reschedule_orphans(character varying,integer)',
        'fetchq.mnt_run(character varying,integer)',
        'fetchq.mnt_run_all(integer)',
        'fetchq.queue_create(character varying)',
        'fetchq.queue_create_indexes(character varying)',
        'fetchq.queue_create_indexes(character varying,integer,integer)',
        'fetchq.queue_disable_notify(character varying)',
        'fetchq.queue_drop(character varying)',
        'fetchq.queue_drop_indexes(character varying)',
        'fetchq.queue_drop_logs(character varying)',
        'fetchq.queue_drop_logs(character varying,character varying)',
        'fetchq.queue_drop_logs(character varying,timestamp with time zone)',
        'fetchq.queue_drop_metrics(character varying)',
        'fetchq.queue_drop_metrics(character varying,jsonb)',
        'fetchq.queue_drop_version(character varying,integer)',
        'fetchq.queue_enable_notify(character varying)',
        'fetchq.queue_get_id(character varying)',
        'fetchq.queue_set_current_version(character varying,integer)',
        'fetchq.queue_set_logs_retention(character varying,character varying)',
        'fetchq.queue_set_max_attempts(character varying,integer)',
        'fetchq.queue_set_metrics_retention(character varying,character varying)',
        'fetchq.queue_status()',
        'fetchq.queue_status(character varying)',
        'fetchq.queue_top(character varying,integer,integer,integer)',
        'fetchq.queue_truncate(character varying)',
        'fetchq.queue_truncate(character varying,boolean)',
        'fetchq.queue_truncate_all()',
        'fetchq.queue_truncate_all(boolean)',
        'fetchq.trace(character varying)',
        'fetchq.trace(character varying,character varying)',
        'fetchq.trigger_docs_notify_insert()',
        'fetchq.trigger_docs_notify_update()',
        'fetchq.trigger_notify_as_json()',
        'fetchq.upgrade__310__320()',
        'fetchq.upgrade__320__330()',
        'fetchq.upgrade__330__400()',
        'fetchq.utils_ts_retain(character varying,character varying,character varying,timestamp with time zone,timestamp with time zone)'
    ])
$$;

-- The columns of the tables, and the types that they can have.
create function fetchq_upgrade.own_columns() returns table (tbl text, col text, types text[])
language sql as $$
    select t, c, string_to_array(y, '|') from (values
        ('queues', 'id', 'integer'), ('queues', 'created_at', 'timestamp with time zone'),
        ('queues', 'name', 'character varying|text'), ('queues', 'is_active', 'boolean'),
        ('queues', 'current_version', 'integer'), ('queues', 'max_attempts', 'integer'),
        ('queues', 'logs_retention', 'character varying|text'), ('queues', 'metrics_retention', 'jsonb'),
        ('queues', 'config', 'jsonb'),
        ('jobs', 'id', 'integer|bigint'), ('jobs', 'task', 'character varying|text'),
        ('jobs', 'queue', 'character varying|text'), ('jobs', 'attempts', 'integer'),
        ('jobs', 'iterations', 'integer|bigint'), ('jobs', 'next_iteration', 'timestamp with time zone'),
        ('jobs', 'last_iteration', 'timestamp with time zone'), ('jobs', 'settings', 'jsonb'),
        ('jobs', 'payload', 'jsonb'),
        ('metrics', 'id', 'integer|bigint'), ('metrics', 'queue', 'character varying|text'),
        ('metrics', 'metric', 'character varying|text'), ('metrics', 'value', 'integer|bigint'),
        ('metrics', 'updated_at', 'timestamp with time zone'),
        ('metrics_writes', 'id', 'uuid|integer|bigint|character varying'),
        ('metrics_writes', 'created_at', 'timestamp with time zone'),
        ('metrics_writes', 'queue', 'character varying|text'),
        ('metrics_writes', 'metric', 'character varying|text'),
        ('metrics_writes', 'increment', 'integer|bigint'), ('metrics_writes', 'reset', 'integer|bigint'),
        ('*docs', 'subject', 'character varying|text'), ('*docs', 'version', 'integer'),
        ('*docs', 'priority', 'integer'), ('*docs', 'status', 'integer'), ('*docs', 'attempts', 'integer'),
        ('*docs', 'iterations', 'integer|bigint'), ('*docs', 'next_iteration', 'timestamp with time zone'),
        ('*docs', 'lock_upgrade', 'timestamp with time zone'), ('*docs', 'created_at', 'timestamp with time zone'),
        ('*docs', 'last_iteration', 'timestamp with time zone'), ('*docs', 'payload', 'jsonb'),
        ('*logs', 'id', 'integer|bigint'), ('*logs', 'created_at', 'timestamp with time zone'),
        ('*logs', 'subject', 'character varying|text'), ('*logs', 'message', 'character varying|text'),
        ('*logs', 'details', 'jsonb'), ('*logs', 'ref_id', 'character varying|text'),
        ('*metrics', 'id', 'integer|bigint'), ('*metrics', 'created_at', 'timestamp with time zone'),
        ('*metrics', 'metric', 'character varying|text'), ('*metrics', 'value', 'integer|bigint')
    ) as e (t, c, y)
$$;

-- What is there, and what it is made of.
do $$
declare
    is_dry_run constant boolean := coalesce(nullif(current_setting('fetchq_upgrade.dry_run', true), ''), 'off')::boolean;
    may_be_connected constant boolean := is_dry_run
        or coalesce(nullif(current_setting('fetchq_upgrade.allow_sessions', true), ''), 'off')::boolean;
    version text;
    r record;
    missing text;
begin
    select string_agg(format('fetchq.%s', t), ', ') into missing
    from unnest(array['queues', 'jobs', 'metrics', 'metrics_writes']) t
    where not exists (select from pg_class c where c.relnamespace = to_regnamespace('fetchq') and c.relname = t and c.relkind = 'r');
    if to_regnamespace('fetchq_data') is null or missing is not null then
        raise exception 'there is no fetchq 4 to upgrade in database "%"', current_database()
            using errcode = 'object_not_in_prerequisite_state',
                detail = format('Missing: %s', coalesce(missing, 'the schema fetchq_data')),
                hint = 'If fetchq 4 is here and was never used, run: select fetchq.init(). If it is not, run: create extension fetchq';
    end if;
    if exists (select from pg_class c where c.relnamespace = 'fetchq'::regnamespace and c.relname = 'counter_log') then
        raise exception 'database "%" has fetchq 5 already', current_database()
            using errcode = 'object_not_in_prerequisite_state', hint = 'There is nothing to do.';
    end if;
    -- From here on nobody changes these tables, but their rows can still be written.
    lock table fetchq.queues, fetchq.jobs, fetchq.metrics, fetchq.metrics_writes in share update exclusive mode;
    select count(*) as n, string_agg(format('%s. %s → %s', s.n, s.problem, s.remedy), e'\n' order by s.n) as list into r
    from (
        select row_number() over (order by t.n) as n, s.problem, s.remedy
        from unnest(array['queues', 'jobs', 'metrics', 'metrics_writes']) with ordinality as t (name, n)
        cross join fetchq_upgrade.strangers_code(format('fetchq.%I', t.name)::regclass) s
    ) s;
    if r.n > 0 then
        raise exception 'fetchq 4 cannot be upgraded; nothing was changed; problems: %', r.n
            using errcode = 'object_not_in_prerequisite_state', detail = r.list,
                hint = 'Do what the list says, and run the upgrade again.';
    end if;
    -- Only read, never called.
    select substring(p.prosrc from 'version\s*:?=\s*''([^'']*)''') into version
    from pg_proc p where p.pronamespace = 'fetchq'::regnamespace and p.proname = 'info';
    if version is null or version !~ '^4\.0\.' then
        insert into fetchq_upgrade.problems (problem, remedy) values (
            format('This is fetchq %s, not 4.0.', coalesce(version, 'of an unknown version')),
            'Start the npm client 4.1.1 or 4.2.0 once, which upgrades older versions to 4.0.');
    end if;

    if not may_be_connected then
        insert into fetchq_upgrade.problems (problem, remedy)
        select format('%s other sessions are connected to this database: %s%s', count(*),
                string_agg(format('pid %s of role %s (%s)', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no application name')), ', ')
                    filter (where a.n <= 10),
                case when count(*) > 10 then ', …' else '' end),
            'Stop the clients: they have to connect anew after the upgrade. If none of them uses fetchq, run: set fetchq_upgrade.allow_sessions = on'
        from (
            select s.*, row_number() over (order by s.pid) as n from pg_stat_activity s
            where s.datname = current_database() and s.pid <> pg_backend_pid() and s.backend_type = 'client backend'
        ) a
        having count(*) > 0;
    end if;
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('The prepared transaction %L is open.', p.gid), format('Commit it or roll it back: rollback prepared %L', p.gid)
    from pg_prepared_xacts p where p.database = current_database();

    -- Everybody waits from here on: nothing can change between the check and the copies. A call that
    -- writes documents counts them afterwards, and the locks are taken in the same order.
    if not is_dry_run and not exists (select from fetchq_upgrade.problems) then
        lock table fetchq.queues, fetchq.jobs in access exclusive mode;
        for r in
            select c.oid::regclass::text as tbl from pg_class c
            where c.relnamespace = 'fetchq_data'::regnamespace and c.relkind in ('r', 'p') order by c.oid
        loop
            execute format('lock table %s in access exclusive mode', r.tbl);
        end loop;
        lock table fetchq.metrics_writes, fetchq.metrics in access exclusive mode;
    end if;

    -- Names. fetchq 4 kept the name as it was written and did not quote that of the tables.
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Queue %L (id %s) has a name that fetchq 5 does not accept.', q.name, q.id),
        format('A name is [A-Za-z_][A-Za-z0-9_]{0,39}. Change it in fetchq.queues, jobs, metrics and metrics_writes, and rename the tables fetchq_data.%I and so on.', lower(q.name) || '__docs')
    from fetchq.queues q where q.name !~ '^[A-Za-z_][A-Za-z0-9_]{0,39}$' order by q.id;
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('The rows with id %s of fetchq.queues are one queue: their names %s are the same in lower case, and so are their tables.',
            string_agg(q.id::text, ', ' order by q.id), string_agg(quote_literal(q.name), ', ' order by q.id)),
        format('Keep one of them: delete from fetchq.queues where id in (%s); delete from fetchq.jobs where lower(queue) = %L and queue <> %L',
            string_agg(q.id::text, ', ' order by q.id) filter (where q.n > 1), lower(q.name), min(q.name) filter (where q.n = 1))
    from (select p.*, row_number() over (partition by lower(p.name) order by p.id) as n from fetchq.queues p) q
    group by lower(q.name) having count(*) > 1 order by min(q.id);
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Queue %L (id %s) has no table %s.', q.name, q.id,
            string_agg(format('fetchq_data.%I', lower(q.name) || '__' || k), ', ')),
        format('If the queue is not used, run: delete from fetchq.jobs where queue = %L; delete from fetchq.queues where id = %s', q.name, q.id)
    from fetchq.queues q cross join unnest(array['docs', 'logs', 'metrics']) k
    where not exists (select from pg_class c where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = lower(q.name) || '__' || k and c.relkind = 'r')
    group by q.id, q.name order by q.id;
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Row %s of fetchq.queues (%L) has a NULL in is_active, current_version or max_attempts.', q.id, q.name),
        format('Set a value: update fetchq.queues set … where id = %s', q.id)
    from fetchq.queues q where q.is_active is null or q.current_version is null or q.max_attempts is null order by q.id;

    -- The queues that have all tables.
    insert into fetchq_upgrade.queues (id, name, docs, logs, series, bytes)
    select distinct on (lower(q.name)) q.id, lower(q.name), d.oid, l.oid, m.oid,
        pg_total_relation_size(d.oid) + pg_total_relation_size(l.oid) + pg_total_relation_size(m.oid)
    from fetchq.queues q
    join pg_class d on d.relnamespace = 'fetchq_data'::regnamespace and d.relname = lower(q.name) || '__docs' and d.relkind = 'r'
    join pg_class l on l.relnamespace = 'fetchq_data'::regnamespace and l.relname = lower(q.name) || '__logs' and l.relkind = 'r'
    join pg_class m on m.relnamespace = 'fetchq_data'::regnamespace and m.relname = lower(q.name) || '__metrics' and m.relkind = 'r'
    order by lower(q.name), q.id;

    -- Jobs.
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Job %s (task %L of queue %L) is of no task or queue that exists.', j.id, j.task, j.queue),
        format('Nothing runs it. Remove it: delete from fetchq.jobs where id = %s', j.id)
    from fetchq.jobs j
    where not (j.task = 'lgp' and j.queue = '*')
        and (j.task not in ('mnt', 'sts', 'cmp', 'drp') or not exists (select from fetchq.queues q where lower(q.name) = lower(j.queue)))
    order by j.id;
end $$;

-- The tables with which fetchq 4 works: the four of its own schema, and three for each queue. A kind
-- is the first word of fetchq_upgrade.own_columns().
create view fetchq_upgrade.tables as
select c.oid as tbl, c.relname::text as kind, null::int as queue
from pg_class c
where c.relnamespace = 'fetchq'::regnamespace and c.relname in ('queues', 'jobs', 'metrics', 'metrics_writes')
union all
select k.tbl, k.kind, q.id
from fetchq_upgrade.queues q
cross join lateral (values (q.docs, '*docs'), (q.logs, '*logs'), (q.series, '*metrics')) as k (tbl, kind);

-- The objects of fetchq 4.
insert into fetchq_upgrade.objects
select 'pg_namespace'::regclass, n.oid from pg_namespace n where n.nspname in ('fetchq', 'fetchq_data');
insert into fetchq_upgrade.objects
select 'pg_proc'::regclass, p.oid from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace and (
    p.oid::regprocedure::text in (select fetchq_upgrade.own_functions())
    or exists (
        select from pg_depend d join pg_extension e on e.oid = d.refobjid and e.extname = 'fetchq'
        where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'));
insert into fetchq_upgrade.objects select 'pg_class'::regclass, t.tbl from fetchq_upgrade.tables t;
-- Their sequences, indexes and TOAST tables.
insert into fetchq_upgrade.objects
select distinct 'pg_class'::regclass::oid, c.oid from pg_class c
where c.relkind in ('S', 't', 'i') and (
    exists (
        select from pg_depend d join fetchq_upgrade.tables t on t.tbl = d.refobjid
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i'))
    or exists (select from pg_index i join fetchq_upgrade.tables t on t.tbl = i.indrelid where i.indexrelid = c.oid));
insert into fetchq_upgrade.objects
select 'pg_class'::regclass, i.indexrelid from pg_index i
join fetchq_upgrade.objects o on o.classid = 'pg_class'::regclass and o.objid = i.indrelid
on conflict do nothing;
-- Primary keys, and the uniqueness of subjects, tasks and names.
insert into fetchq_upgrade.objects
select 'pg_constraint'::regclass, c.oid from pg_constraint c join fetchq_upgrade.tables t on t.tbl = c.conrelid
where c.contype = 'n' or c.contype in ('p', 'u') and (
    select array_agg(a.attname::text order by a.attname) from pg_attribute a where a.attrelid = c.conrelid and a.attnum = any (c.conkey)
) in (array['subject'], array['id'], array['name'], array['queue', 'task'], array['metric', 'queue']);
insert into fetchq_upgrade.objects
select 'pg_attrdef'::regclass, d.oid from pg_attrdef d join fetchq_upgrade.tables t on t.tbl = d.adrelid;
insert into fetchq_upgrade.objects
select 'pg_type'::regclass, y.oid from pg_type y
where exists (
    select from fetchq_upgrade.objects o join pg_class c on c.oid = o.objid
    where o.classid = 'pg_class'::regclass and c.reltype <> 0 and (y.oid = c.reltype or y.typelem = c.reltype and y.typcategory = 'A'));
insert into fetchq_upgrade.objects
select 'pg_trigger'::regclass, g.oid
from pg_trigger g join fetchq_upgrade.tables t on t.tbl = g.tgrelid join pg_proc p on p.oid = g.tgfoid
where p.pronamespace = 'fetchq'::regnamespace
    and (t.kind = '*docs' and p.proname in ('trigger_docs_notify_insert', 'trigger_docs_notify_update')
        or t.kind = 'queues' and g.tgname = 'fetchq_trigger_sys_queues_insert');

-- Views on the tables and functions, and views on those views. They are made anew, from the text of
-- their queries.
do $$
begin
    loop
        insert into fetchq_upgrade.views (view)
        select distinct r.ev_class
        from pg_depend d
        join fetchq_upgrade.objects o on (o.classid, o.objid) = (d.refclassid, d.refobjid)
        join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid and r.rulename = '_RETURN'
        join pg_class c on c.oid = r.ev_class and c.relkind = 'v'
        where d.deptype = 'n' and c.relnamespace <> 'fetchq_upgrade'::regnamespace
        on conflict do nothing;
        exit when not found;
        insert into fetchq_upgrade.objects
        select 'pg_class'::regclass, v.view from fetchq_upgrade.views v
        union all select 'pg_rewrite'::regclass, r.oid from fetchq_upgrade.views v join pg_rewrite r on r.ev_class = v.view and r.rulename = '_RETURN'
        union all select 'pg_type'::regclass, y.oid from fetchq_upgrade.views v join pg_class c on c.oid = v.view
            join pg_type y on y.oid = c.reltype or y.typelem = c.reltype and y.typcategory = 'A'
        on conflict do nothing;
    end loop;
end $$;
with recursive edges as (
    select distinct r.ev_class as view, d.refobjid as on_view
    from pg_rewrite r
    join fetchq_upgrade.views v on v.view = r.ev_class
    join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid and d.refclassid = 'pg_class'::regclass and d.refobjid <> r.ev_class
    join fetchq_upgrade.views w on w.view = d.refobjid
), deep as (
    select v.view, 0 as depth from fetchq_upgrade.views v
    union
    select e.view, deep.depth + 1 from deep join edges e on e.on_view = deep.view
)
update fetchq_upgrade.views v set depth = m.depth
from (select deep.view, max(deep.depth) as depth from deep group by deep.view) m where m.view = v.view;

-- The tables: their columns and their kind.
do $$
declare
    r record;
    q record;
    counts record;
    can_read boolean := true;
begin
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Table %s has no column %I of type %s.', t.tbl::regclass, e.col, array_to_string(e.types, ' or ')),
        'fetchq 4 cannot work with it either. Give the table the column that fetchq 4 creates.'
    from fetchq_upgrade.tables t join fetchq_upgrade.own_columns() e on e.tbl = t.kind
    where not exists (
        select from pg_attribute a
        where a.attrelid = t.tbl and a.attname = e.col and not a.attisdropped and format_type(a.atttypid, null) = any (e.types))
    order by t.tbl, e.col;
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Column %I of table %s (%s) cannot be carried over.', a.attname, t.tbl::regclass, format_type(a.atttypid, a.atttypmod)),
        'Copy it into a table of your own, and drop it: '
            || case when t.queue is null then 'fetchq 5 keeps columns of yours in the tables of queues only.'
                when a.attgenerated <> '' or a.attidentity <> '' then 'a generated column is not carried over.'
                when a.atttypid >= 16384 then 'only columns of built-in types are carried over.'
                else 'fetchq 5 has a column of this name, its default calls a function of yours, or it owns a sequence.' end
    from fetchq_upgrade.tables t
    join pg_attribute a on a.attrelid = t.tbl and a.attnum > 0 and not a.attisdropped
    where not exists (select from fetchq_upgrade.own_columns() e where e.tbl = t.kind and e.col = a.attname)
        and (t.queue is null or a.attgenerated <> '' or a.attidentity <> '' or a.atttypid >= 16384
            or t.kind = '*docs' and a.attname in ('seq', 'lease', 'worker_session', 'ordering_key', 'max_attempts', 'last_error', 'origin', 'due_at', 'picked_at', 'result', 'progress', 'headers', 'queued', 'expires_at')
            or t.kind = '*logs' and a.attname = 'attempt'
            or exists (
                select from pg_attrdef f join pg_depend d on d.classid = 'pg_attrdef'::regclass and d.objid = f.oid
                where f.adrelid = t.tbl and f.adnum = a.attnum and (d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass) and d.refobjid >= 16384
                        or (d.refclassid, d.refobjid) in (select o.classid, o.objid from fetchq_upgrade.objects o where o.classid = 'pg_class'::regclass and o.objid <> f.adrelid))))
    order by t.tbl, a.attnum;
    -- The new tables have the defaults of fetchq 5. Those of fetchq 4 are 0, now() and a sequence.
    insert into fetchq_upgrade.problems (problem, remedy)
    select format('Column %I of table %s has a default of yours: %s.', a.attname, t.tbl::regclass, pg_get_expr(f.adbin, f.adrelid)),
        format('alter table %s alter column %I drop default', t.tbl::regclass, a.attname)
    from fetchq_upgrade.tables t
    join fetchq_upgrade.own_columns() e on e.tbl = t.kind
    join pg_attribute a on a.attrelid = t.tbl and a.attname = e.col and not a.attisdropped and a.attgenerated = ''
    join pg_attrdef f on f.adrelid = t.tbl and f.adnum = a.attnum
    where t.queue is not null and pg_get_expr(f.adbin, f.adrelid) not in ('0', 'now()', 'CURRENT_TIMESTAMP')
        and pg_get_expr(f.adbin, f.adrelid) not like 'nextval(%'
    order by t.tbl, a.attnum;
    for r in
        select t.tbl::regclass as tbl, c.*, exists (select from pg_inherits i where t.tbl in (i.inhrelid, i.inhparent)) as inherits,
            exists (select from pg_seclabel s where s.classoid = 'pg_class'::regclass and s.objoid = t.tbl) as has_label
        from fetchq_upgrade.tables t join pg_class c on c.oid = t.tbl order by t.tbl
    loop
        if r.relpersistence <> 'p' then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('Table %s is not logged.', r.tbl), format('alter table %s set logged', r.tbl));
        end if;
        if r.relrowsecurity or r.relforcerowsecurity then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('Table %s has row security.', r.tbl),
                format('Note its policies, and switch it off until the upgrade is done: alter table %s disable row level security, no force row level security', r.tbl));
        end if;
        if r.relreplident <> 'd' then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('Table %s has a replica identity of its own.', r.tbl), format('alter table %s replica identity default', r.tbl));
        end if;
        if r.inherits then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('Table %s is a parent, a child or a partition of another table.', r.tbl), 'Detach them: alter table … no inherit …');
        end if;
        if r.has_label then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('Table %s has a security label.', r.tbl), 'Remove it, and set it again after the upgrade.');
        end if;
    end loop;
    -- The rows are read only where the columns are what they should be, and no code of others runs.
    for r in select t.tbl::regclass as tbl from fetchq_upgrade.tables t where t.queue is not null order by t.tbl loop
        execute format('lock table %s in share update exclusive mode', r.tbl);
        insert into fetchq_upgrade.problems (problem, remedy) select s.problem, s.remedy from fetchq_upgrade.strangers_code(r.tbl) s;
        can_read := can_read and not found;
    end loop;
    if not can_read or exists (select from fetchq_upgrade.problems p where p.problem like 'Table % has no column %') then
        return;
    end if;

    for q in select * from fetchq_upgrade.queues order by id loop
        execute format('select count(*) as documents,
                count(*) filter (where subject is null) as unnamed,
                count(*) filter (where length(subject) > 255) as long,
                count(*) filter (where version is null or priority is null or status is null or attempts is null or iterations is null or next_iteration is null) as nulls,
                count(*) filter (where status not between -1 and 3) as odd
            from only %s', q.docs::regclass) into counts;
        update fetchq_upgrade.queues set documents = counts.documents where id = q.id;
        insert into fetchq_upgrade.problems (problem, remedy)
        select format('%s documents of queue %I %s.', p.n, q.name, p.what), format(p.remedy, q.docs::regclass)
        from (values
            (counts.unnamed, 'have no subject', 'Give them one or delete them: delete from %s where subject is null'),
            (counts.long, 'have a subject of more than 255 characters', 'See: select subject from %s where length(subject) > 255'),
            (counts.nulls, 'have a NULL in version, priority, status, attempts, iterations or next_iteration, and are never picked',
                'See: select * from %s where version is null or priority is null or status is null or attempts is null or iterations is null or next_iteration is null'),
            (counts.odd, 'have a status that does not exist', 'See: select * from %s where status not between -1 and 3')
        ) as p (n, what, remedy)
        where p.n > 0;
        if not exists (select from pg_index i where i.indrelid = q.docs and i.indisunique and i.indisvalid and i.indpred is null and i.indnkeyatts = 1
            and i.indkey[0] = (select a.attnum from pg_attribute a where a.attrelid = q.docs and a.attname = 'subject')) then
            execute format('select count(*) as n from (select from only %s group by subject having count(*) > 1) s', q.docs::regclass) into counts;
            if counts.n > 0 then
                insert into fetchq_upgrade.problems (problem, remedy) values (
                    format('%s subjects of queue %I are there more than once: its table has lost the primary key.', counts.n, q.name),
                    format('Remove the others: select subject from %s group by subject having count(*) > 1', q.docs::regclass));
            end if;
        end if;
        for r in
            select * from (values (q.logs, 'created_at is null or subject is null or length(subject) > 255 or message is null'), (q.series, 'created_at is null or metric is null or length(metric) > 50')) as l (tbl, condition)
        loop
            execute format('select count(*) as n from only %s where %s', r.tbl::regclass, r.condition) into counts;
            if counts.n > 0 then
                insert into fetchq_upgrade.problems (problem, remedy) values (
                    format('%s rows of %s have a NULL or a value that is too long.', counts.n, r.tbl::regclass),
                    format('See: select * from %s where %s', r.tbl::regclass, r.condition));
            end if;
        end loop;
    end loop;
end $$;

-- What depends on these objects, or is in the schemas. Each of them is made anew, or is a problem.
do $$
declare
    r record;
begin
    -- Indexes.
    for r in
        select i.indexrelid::regclass as index, c.relname, pg_get_indexdef(i.indexrelid) as sql, t.tbl, t.queue, q.name as queue_name
        from pg_index i
        join fetchq_upgrade.tables t on t.tbl = i.indrelid
        join pg_class c on c.oid = i.indexrelid
        left join fetchq_upgrade.queues q on q.id = t.queue
        where not exists (select from pg_constraint k where k.conindid = i.indexrelid)
            and (t.queue is not null or c.relname !~ '^__fetchq_')
            and (t.kind is distinct from '*docs' or c.relname !~ format('^fetchq_%s_for_(pick_-?[0-9]+|pnd|orp|dod|ups)_idx$', q.name))
        order by i.indexrelid
    loop
        if r.queue is null then
            insert into fetchq_upgrade.problems (problem, remedy) values (
                format('Index %s of table %s is not one of fetchq 4.', r.index, r.tbl::regclass),
                format('fetchq 5 has indexes of its own there: drop index %s', r.index));
        elsif r.relname in (r.queue_name || '__docs_pkey', r.queue_name || '__docs_pick_idx', r.queue_name || '__docs_due_idx', r.queue_name || '__docs_expiry_idx', r.queue_name || '__logs_pkey', r.queue_name || '__logs_created_at_idx',
            r.queue_name || '__logs_subject_idx', r.queue_name || '__metrics_pkey', r.queue_name || '__metrics_created_at_idx') then
            insert into fetchq_upgrade.problems (problem, remedy) values (
                format('Index %s has a name that fetchq 5 gives to an index of its own.', r.index),
                format('Rename or drop it: drop index %s', r.index));
        else
            insert into fetchq_upgrade.statements (step, sql) values ('index', r.sql);
        end if;
    end loop;

    -- Views.
    for r in
        select v.view, c.relname, n.nspname, c.reloptions, pg_get_viewdef(v.view) as query, format('%I.%I', n.nspname, c.relname) as name,
            exists (select from pg_seclabel s where s.classoid = 'pg_class'::regclass and s.objoid = v.view) as has_label
        from fetchq_upgrade.views v join pg_class c on c.oid = v.view join pg_namespace n on n.oid = c.relnamespace
        order by v.depth, v.view
    loop
        if r.nspname in ('fetchq', 'fetchq_data') then
            insert into fetchq_upgrade.problems (problem, remedy) values (
                format('View %s is in a schema of fetchq.', r.name), format('Move it: alter view %s set schema …', r.name));
        elsif r.has_label then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('View %s has a security label.', r.name), 'Remove it, and set it again after the upgrade.');
        elsif exists (select from pg_attrdef d where d.adrelid = r.view) then
            insert into fetchq_upgrade.problems (problem, remedy) values (format('View %s has a default for a column.', r.name), 'Drop it, and set it again after the upgrade.');
        end if;
        insert into fetchq_upgrade.statements (step, sql) values ('view', format('create view %s%s as %s', r.name,
            (select ' with (' || string_agg(format('%I = %L', split_part(o, '=', 1), substr(o, strpos(o, '=') + 1)), ', ') || ')' from unnest(r.reloptions) o), r.query));
    end loop;

    -- Triggers.
    for r in
        select g.*, g.tgrelid::regclass as tbl, p.pronamespace = 'fetchq'::regnamespace and p.proname = 'trigger_notify_as_json' as is_json,
            t.queue, t.tbl is not null as is_ours, v.view is not null as is_of_view,
            exists (select from fetchq_upgrade.objects f where f.classid = 'pg_proc'::regclass and f.objid = p.oid) as has_own_function,
            p.oid::regprocedure as function, o.rolname as function_owner, o.rolsuper as is_of_superuser
        from pg_trigger g
        join pg_proc p on p.oid = g.tgfoid
        join pg_roles o on o.oid = p.proowner
        left join fetchq_upgrade.tables t on t.tbl = g.tgrelid
        left join fetchq_upgrade.views v on v.view = g.tgrelid
        where not g.tgisinternal and not exists (select from fetchq_upgrade.objects o where o.classid = 'pg_trigger'::regclass and o.objid = g.oid)
            and (t.tbl is not null or v.view is not null or exists (select from fetchq_upgrade.objects f where f.classid = 'pg_proc'::regclass and f.objid = p.oid))
        order by g.oid
    loop
        if r.is_ours and r.queue is null then
            insert into fetchq_upgrade.problems (problem, remedy) values (
                format('Trigger %I of table %s is not one of fetchq 4.', r.tgname, r.tbl),
                format('In fetchq 5 it would run with the rights of the owner of the extension: drop trigger %I on %s', r.tgname, r.tbl));
        elsif r.is_ours and not r.has_own_function and not r.is_of_superuser then
            insert into fetchq_upgrade.problems (problem, remedy) values (
                format('Trigger %I of table %s calls %s, which is of role %I.', r.tgname, r.tbl, r.function, r.function_owner),
                format('In fetchq 5 one role owns the tables of all queues, and the trigger would run with its rights. Have a superuser own the function, or drop the trigger: drop trigger %I on %s', r.tgname, r.tbl));
        elsif r.has_own_function and not r.is_json or r.tgparentid <> 0 then
            insert into fetchq_upgrade.problems (problem, remedy) values (
                format('Trigger %I of table %s cannot be carried over.', r.tgname, r.tbl),
                format('Drop it, and create it again after the upgrade if fetchq 5 has its function: drop trigger %I on %s', r.tgname, r.tbl));
        else
            insert into fetchq_upgrade.statements (step, sql) values ('trigger', pg_get_triggerdef(r.oid));
            if r.tgenabled <> 'O' then
                insert into fetchq_upgrade.statements (step, sql) values ('trigger', format('alter table %s %s trigger %I', r.tbl,
                    case r.tgenabled when 'D' then 'disable' when 'A' then 'enable always' else 'enable replica' end, r.tgname));
            end if;
            insert into fetchq_upgrade.statements (step, sql)
            select 'comment', format('comment on trigger %I on %s is %L', r.tgname, r.tbl, d.description)
            from pg_description d where d.classoid = 'pg_trigger'::regclass and d.objoid = r.oid;
            if not r.is_ours and not r.is_of_view then
                insert into fetchq_upgrade.foreign_triggers values (r.tgname, r.tgrelid);
            end if;
        end if;
        insert into fetchq_upgrade.objects values ('pg_trigger'::regclass, r.oid);
    end loop;

    -- Everything else.
    insert into fetchq_upgrade.problems (problem, remedy)
    select distinct on (d.classid, d.objid)
        case when d.refclassid = 'pg_namespace'::regclass
            then format('%s is in the %s, but does not belong to fetchq 4.', pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0))
            else format('%s depends on %s.', pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0)) end,
        case when d.refclassid = 'pg_namespace'::regclass then 'Move it to another schema, or drop it.'
            else 'Drop it, and create it again after the upgrade.' end
    from pg_depend d
    join fetchq_upgrade.objects o on (o.classid, o.objid) = (d.refclassid, d.refobjid)
    where d.deptype <> 'e'
        and not exists (select from fetchq_upgrade.objects k where (k.classid, k.objid) = (d.classid, d.objid))
        -- The constraint of a constraint trigger goes with the trigger.
        and not (d.classid = 'pg_constraint'::regclass and exists (select from pg_constraint c where c.oid = d.objid and c.contype = 't'))
        -- Internal triggers go with their constraint.
        and not (d.classid = 'pg_trigger'::regclass and exists (select from pg_trigger g where g.oid = d.objid and g.tgisinternal))
        -- What this script has made.
        and not (d.classid = 'pg_rewrite'::regclass and exists (select from pg_rewrite w join pg_class c on c.oid = w.ev_class where w.oid = d.objid and c.relnamespace = 'fetchq_upgrade'::regnamespace))
    order by d.classid, d.objid, d.refclassid = 'pg_namespace'::regclass desc;

    -- Comments.
    insert into fetchq_upgrade.statements (step, sql)
    select 'comment', case when d.objsubid = 0 then format('comment on %s %s is %L', k.kind, d.objoid::regclass, d.description)
        else format('comment on column %s.%I is %L', d.objoid::regclass, a.attname, d.description) end
    from (
        select t.tbl, 'table' as kind from fetchq_upgrade.tables t where t.queue is not null
        union all select v.view, 'view' from fetchq_upgrade.views v
    ) k
    join pg_description d on d.classoid = 'pg_class'::regclass and d.objoid = k.tbl
    left join pg_attribute a on a.attrelid = d.objoid and a.attnum = d.objsubid
    order by k.tbl, d.objsubid;
end $$;

-- The report.
do $$
declare
    is_dry_run constant boolean := coalesce(nullif(current_setting('fetchq_upgrade.dry_run', true), ''), 'off')::boolean;
    problems constant bigint := (select count(*) from fetchq_upgrade.problems);
    wrong constant text := (select string_agg(format('%s. %s → %s', p.n, p.problem, p.remedy), e'\n' order by p.n)
        from (select row_number() over (order by id) as n, * from fetchq_upgrade.problems) p);
    report text;
begin
    if problems = 0 and not is_dry_run then
        return;
    end if;
    if is_dry_run then
        select format('%s queues, %s documents, tables of %s. The upgrade needs about %s of disk more while it runs: for the new tables, for temporary files and for the write-ahead log.',
                count(*), coalesce(sum(q.documents), 0), pg_size_pretty(coalesce(sum(q.bytes), 0)), pg_size_pretty(coalesce(sum(q.bytes), 0) * 5 / 2))
            || coalesce(string_agg(format(e'\nqueue %I: %s documents, %s', q.name, q.documents, pg_size_pretty(q.bytes)), '' order by q.id), '')
            || format(e'\nmade anew: %s views, %s triggers, %s indexes of yours',
                (select count(*) from fetchq_upgrade.views), (select count(*) from fetchq_upgrade.statements s where s.step = 'trigger' and s.sql ~* '^create'),
                (select count(*) from fetchq_upgrade.statements s where s.step = 'index'))
            || format(e'\n%s other sessions are connected', (select count(*) from pg_stat_activity s
                where s.datname = current_database() and s.pid <> pg_backend_pid() and s.backend_type = 'client backend'))
        into report from fetchq_upgrade.queues q;
    end if;
    if problems > 0 then
        raise exception 'fetchq 4 cannot be upgraded; nothing was changed; problems: %', problems
            using errcode = 'object_not_in_prerequisite_state', detail = concat_ws(e'\n', report, wrong),
                hint = 'Do what the list says, and run the upgrade again.';
    end if;
    raise exception 'dry run: fetchq 4 can be upgraded; nothing was changed'
        using errcode = 'raise_exception', detail = report,
            hint = 'Without fetchq_upgrade.dry_run the upgrade runs.';
end $$;
