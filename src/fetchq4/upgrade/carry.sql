-- The upgrade from fetchq 4, part 3 of 4: fetchq 5 is installed and empty, and gets what fetchq 4 had.

set local search_path = pg_catalog, pg_temp;

do $$
declare
    -- Counted anew, because fetchq 4 let them drift.
    gauges constant text := '^(cnt|pln|pnd|act|cpl|kll|v-?[0-9]+)$';
    privileges constant text[] := array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'MAINTAIN'];
    old record;
    part record;
    r record;
    columns text;
    last_id bigint;
    has_ids boolean;
begin
    for old in
        select u.docs, u.name as folded, q.*
        from fetchq_upgrade.queues u join fetchq_upgrade_old.queues q on q.id = u.id order by u.id
    loop
        -- The queue gets its id again.
        perform setval(pg_get_serial_sequence('fetchq.queues', 'id'), old.id, false);
        perform fetchq.queue_create(old.folded);
        update fetchq.queues set
            created_at = coalesce(old.created_at, created_at),
            is_active = old.is_active,
            current_version = old.current_version,
            max_attempts = old.max_attempts,
            logs_retention = coalesce(old.logs_retention, '24h'),
            metrics_retention = coalesce(old.metrics_retention, '[]'),
            config = coalesce(old.config, '{}')
        where name = old.folded;

        for part in
            select t.tbl, substr(t.kind, 2) as kind, c.relowner, c.reltablespace, c.reloptions, format('fetchq_data.%I', c.relname) as name
            from fetchq_upgrade.tables t join pg_class c on c.oid = t.tbl where t.queue = old.id order by t.kind
        loop
            -- Columns, storage parameters and the tablespace of the user's. The defaults come after the
            -- rows: a new column computes its default at once, with the rights of the superuser.
            for r in
                select format('alter table %s add column %I %s%s', part.name, a.attname, format_type(a.atttypid, a.atttypmod),
                    coalesce((select format(' collate %I.%I', n.nspname, k.collname) from pg_collation k join pg_namespace n on n.oid = k.collnamespace
                        where k.oid = a.attcollation and a.attcollation <> (select y.typcollation from pg_type y where y.oid = a.atttypid)), '')) as sql
                from pg_attribute a
                where a.attrelid = part.tbl and a.attnum > 0 and not a.attisdropped
                    and not exists (select from fetchq_upgrade.own_columns() e where e.tbl = '*' || part.kind and e.col = a.attname)
                order by a.attnum
            loop
                execute r.sql;
            end loop;
            for r in select format('alter table %s set (%I = %L)', part.name, split_part(o, '=', 1), substr(o, strpos(o, '=') + 1)) as sql from unnest(part.reloptions) o loop
                execute r.sql;
            end loop;
            for r in select format('alter table %s set tablespace %I', part.name, t.spcname) as sql from pg_tablespace t where t.oid = part.reltablespace loop
                execute r.sql;
            end loop;

            -- Rows, in the order of insertion as far as it is known: seq, which orders documents of
            -- one moment, follows it. The indexes are built once, at the end.
            select string_agg(format('%I', a.attname), ', ' order by a.attnum) into columns
            from pg_attribute a where a.attrelid = part.tbl and a.attnum > 0 and not a.attisdropped;
            if part.kind = 'docs' then
                perform fetchq.queue_drop_indexes(old.folded);
                execute format('alter table %s drop constraint %I', part.name, old.folded || '__docs_pkey');
            end if;
            execute format('insert into %s (%s) select %2$s from only %s order by %s', part.name, columns, part.tbl::regclass,
                case part.kind when 'docs' then 'created_at, ctid' else 'id' end);
            for r in
                select format('alter table %s alter column %I %s', part.name, a.attname, what.sql) as sql
                from pg_attribute a
                cross join lateral (
                    select 1 as n, 'set default ' || pg_get_expr(d.adbin, d.adrelid) as sql from pg_attrdef d where d.adrelid = a.attrelid and d.adnum = a.attnum
                    union all select 2, 'set not null' where a.attnotnull
                ) what
                where a.attrelid = part.tbl and a.attnum > 0 and not a.attisdropped
                    and not exists (select from fetchq_upgrade.own_columns() e where e.tbl = '*' || part.kind and e.col = a.attname)
                order by a.attnum, what.n
            loop
                execute r.sql;
            end loop;
            if part.kind = 'docs' then
                execute format('alter table %s add constraint %I primary key (subject)', part.name, old.folded || '__docs_pkey');
                perform fetchq.queue_create_indexes(old.folded);
            else
                -- Ids go on where they were.
                select case when s.seq is not null then pg_sequence_last_value(s.seq) end into last_id
                from (select to_regclass(pg_get_serial_sequence(part.tbl::regclass::text, 'id')) as seq) s;
                execute format('select setval(pg_get_serial_sequence(%L, %L), greatest(max(id), %L::bigint)) from %s having max(id) is not null or %3$L::bigint is not null', part.name, 'id', last_id, part.name);
            end if;

            -- One role owns the tables of all queues. The former owner is the owner of the queue.
            for r in
                select distinct format('revoke all on %s from %s', part.name, case e.grantee when 0 then 'public' else e.grantee::regrole::text end) as sql
                from pg_class c cross join lateral aclexplode(c.relacl) e
                where c.oid = part.name::regclass and e.grantee <> c.relowner
                union all
                select format('grant select, insert, update, delete, truncate on %s to %s with grant option', part.name, o.oid::regrole)
                from pg_roles o where o.oid = part.relowner and not o.rolsuper
                    and o.oid <> (select c.relowner from pg_class c where c.oid = part.name::regclass)
                union all
                select fetchq_upgrade.grants_of(part.tbl, part.name, privileges)
            loop
                execute r.sql;
            end loop;
        end loop;

        perform fetchq.metric_reset(old.folded);
        if exists (
            select from pg_trigger g join pg_proc p on p.oid = g.tgfoid
            where g.tgrelid = old.docs and p.proname in ('trigger_docs_notify_insert', 'trigger_docs_notify_update') and g.tgenabled <> 'D'
        ) then
            perform fetchq.queue_enable_notify(old.folded);
        end if;
    end loop;
    select greatest(max(q.id), pg_sequence_last_value(to_regclass(pg_get_serial_sequence('fetchq_upgrade_old.queues', 'id')))) into last_id from fetchq.queues q;
    if last_id is not null then
        perform setval(pg_get_serial_sequence('fetchq.queues', 'id'), last_id);
    end if;

    -- Totals and the metrics of the user's. A race of fetchq 4 could leave two rows for one metric, which
    -- were then counted up together: the larger one is right.
    insert into fetchq.metrics (queue, metric, value, updated_at)
    select coalesce(u.name, m.queue), m.metric, max(m.value), max(m.updated_at)
    from fetchq_upgrade_old.metrics m left join fetchq_upgrade.queues u on u.name = lower(m.queue)
    where u.name is null or m.metric !~ gauges
    group by 1, 2 order by min(m.id);
    -- Writes that were not packed yet: the next pack applies them.
    insert into fetchq.metrics_writes (created_at, queue, metric, increment, reset)
    select least(coalesce(w.created_at, now()), now()), coalesce(u.name, w.queue), w.metric, w.increment, w.reset
    from fetchq_upgrade_old.metrics_writes w left join fetchq_upgrade.queues u on u.name = lower(w.queue)
    where u.name is null or w.metric !~ gauges;

    -- Jobs: what was set, and how far they were. A job that fetchq 4 had given up runs again.
    update fetchq.jobs j set
        settings = case when j.task = 'lgp' and o.settings = '{"delay": "3s", "duration": "5m"}' then j.settings else coalesce(o.settings, j.settings) end,
        payload = coalesce(o.payload, j.payload),
        iterations = coalesce(o.iterations, 0),
        last_iteration = o.last_iteration,
        next_iteration = coalesce(o.next_iteration, now())
    from (select distinct on (k.task, lower(k.queue)) k.*, lower(k.queue) as folded from fetchq_upgrade_old.jobs k order by k.task, lower(k.queue), k.id) o
    where o.task = j.task and o.folded = j.queue;

    -- Who may use the schemas, create queues and pack counters, and work with the tables of fetchq.
    for r in
        with roles as (
            select n.nspname, e.grantee, e.privilege_type
            from pg_namespace n cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) e
            where n.nspname in ('fetchq_upgrade_old', 'fetchq_upgrade_data')
        ), tables as (
            select c.relname, e.grantee, e.privilege_type, e.is_grantable
            from pg_class c cross join lateral aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) e
            where c.relnamespace = 'fetchq_upgrade_old'::regnamespace and c.relname in ('queues', 'jobs', 'metrics', 'metrics_writes')
        ), wanted as (
            select 1 as n, format('usage on schema %s', case s.nspname when 'fetchq_upgrade_old' then 'fetchq' else 'fetchq_data' end) as what, s.grantee
            from roles s where s.privilege_type = 'USAGE'
            union
            -- The owners of queues.
            select 1, format('usage on schema %s', s), c.relowner
            from fetchq_upgrade.queues q join pg_class c on c.oid = q.docs cross join unnest(array['fetchq', 'fetchq_data']) s
            union
            select 2, 'execute on function fetchq.queue_create', s.grantee from roles s where s.nspname = 'fetchq_upgrade_data' and s.privilege_type = 'CREATE'
            union
            select 2, 'execute on function fetchq.metric_log_pack', t.grantee from tables t where t.relname = 'metrics_writes' and t.privilege_type = 'DELETE'
            union
            select 3, format('%s on fetchq.%I', t.privilege_type, t.relname), t.grantee from tables t where t.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        )
        select format('grant %s to %s', w.what, case w.grantee when 0 then 'public' else w.grantee::regrole::text end) as sql
        from wanted w
        -- Superusers and the owner of the extension have all rights.
        where not exists (select from pg_roles o where o.oid = w.grantee and o.rolsuper) and w.grantee <> (select e.extowner from pg_extension e where e.extname = 'fetchq')
        order by w.n, w.what, w.grantee
    loop
        execute r.sql;
    end loop;
    for r in
        select fetchq_upgrade.grants_of(c.oid, format('fetchq.%I', c.relname), array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as sql
        from pg_class c where c.relnamespace = 'fetchq_upgrade_old'::regnamespace and c.relname in ('queues', 'jobs', 'metrics', 'metrics_writes')
    loop
        execute r.sql;
    end loop;
    -- Functions that not everybody could call.
    for r in
        with closed as (
            select p.proname, array_agg(distinct e.grantee) filter (where e.grantee <> p.proowner) as grantees
            from pg_proc p cross join lateral aclexplode(p.proacl) e
            where p.pronamespace = 'fetchq_upgrade_old'::regnamespace group by p.proname
            having not bool_or(e.grantee = 0) and bool_and(p.proacl is not null)
                and not exists (select from pg_proc o where o.pronamespace = 'fetchq_upgrade_old'::regnamespace and o.proname = p.proname and o.proacl is null)
        )
        select x.sql
        from closed c join pg_proc p on p.pronamespace = 'fetchq'::regnamespace and p.proname = c.proname
        cross join lateral (
            select 1 as n, format('revoke all on function %s from public', p.oid::regprocedure) as sql
            union all
            select 2, format('grant execute on function %s to %s', p.oid::regprocedure, g::regrole) from unnest(c.grantees) g
        ) x
        order by p.oid, x.n
    loop
        execute r.sql;
    end loop;

    -- Indexes, views, triggers and comments of the user's.
    for r in
        select s.sql from (
            select case t.step when 'index' then 1 when 'view' then 2 when 'trigger' then 4 else 5 end as n, t.id, t.sql from fetchq_upgrade.statements t
            union all select 3, g.id, g.sql from fetchq_upgrade.grants g
        ) s
        order by s.n, s.id
    loop
        execute r.sql;
    end loop;
end $$;
