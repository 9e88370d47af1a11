-- Moves queues from fetchq 4 (plain SQL) into the extension: see docs/guides/migrating-from-fetchq-4.md.
--
-- Before: no client is connected; the old schemas were renamed to fetchq4 and
-- fetchq4_data; CREATE EXTENSION fetchq was run and holds no queue yet.
-- All of it happens or nothing does. The old schemas are only read.
--
--   psql -X -v ON_ERROR_STOP=1 -1 -f docs/guides/migrate-fetchq-4.sql
do $$
declare
    gauges constant text := '^(cnt|pln|pnd|act|cpl|kll|v-?[0-9]+)$';
    old record;
    target text;
    n bigint;
    total bigint := 0;
begin
    if to_regclass('fetchq4.queues') is null or to_regnamespace('fetchq4_data') is null then
        raise exception 'the schemas fetchq4 and fetchq4_data do not exist'
            using hint = 'Rename the old ones: alter schema fetchq rename to fetchq4; alter schema fetchq_data rename to fetchq4_data;';
    end if;
    if exists (select from fetchq.queues) then
        raise exception 'the extension has queues already'
            using hint = 'Migrate into a fresh extension: the ids of the queues are kept.';
    end if;
    lock table fetchq.queues, fetchq.jobs, fetchq.metrics, fetchq.metrics_writes in exclusive mode;

    -- fetchq 4 did not keep names unique, and wrote them unquoted: "Foo" and "foo" have
    -- the same tables. The first of such rows counts.
    for old in
        select distinct on (lower(q.name)) q.*, lower(q.name) as folded,
            to_regclass(format('fetchq4_data.%I', lower(q.name) || '__docs')) as docs,
            to_regclass(format('fetchq4_data.%I', lower(q.name) || '__logs')) as logs,
            to_regclass(format('fetchq4_data.%I', lower(q.name) || '__metrics')) as series
        from fetchq4.queues q
        order by lower(q.name), q.id
    loop
        if old.docs is null then
            raise warning 'queue "%" has no tables: left out', old.name;
            continue;
        end if;

        -- An error, if the name breaks the rule of fetchq 5: rename it in fetchq4 first.
        perform fetchq.queue_create(old.folded);
        update fetchq.queues set
            id = old.id,
            created_at = coalesce(old.created_at, created_at),
            is_active = coalesce(old.is_active, true),
            current_version = coalesce(old.current_version, 0),
            max_attempts = coalesce(old.max_attempts, 5),
            logs_retention = coalesce(old.logs_retention, '24h'),
            metrics_retention = coalesce(old.metrics_retention, '[]'),
            config = coalesce(old.config, '{}')
        where name = old.folded;

        -- seq, which orders documents of one moment, follows the order of insertion.
        -- The indexes are made once, at the end.
        perform fetchq.queue_drop_indexes(old.folded);
        target := format('fetchq_data.%I', old.folded || '__docs');
        execute format('insert into %s (subject, version, priority, status, attempts, iterations,
                next_iteration, lock_upgrade, created_at, last_iteration, payload)
            select subject, coalesce(version, 0), coalesce(priority, 0), coalesce(status, 0),
                coalesce(attempts, 0), coalesce(iterations, 0),
                coalesce(next_iteration, created_at, now()), lock_upgrade, created_at, last_iteration, payload
            from %s order by created_at, ctid', target, old.docs);
        get diagnostics n = row_count;
        total := total + n;
        perform fetchq.queue_create_indexes(old.folded);

        if old.logs is not null then
            target := format('fetchq_data.%I', old.folded || '__logs');
            execute format('insert into %s (id, created_at, subject, message, details, ref_id)
                select id, coalesce(created_at, now()), subject, message, details, ref_id from %s order by id', target, old.logs);
            execute format('select setval(pg_get_serial_sequence(%L, %L), max(id)) from %s', target, 'id', target);
        end if;
        if old.series is not null then
            target := format('fetchq_data.%I', old.folded || '__metrics');
            execute format('insert into %s (id, created_at, metric, value)
                select id, coalesce(created_at, now()), metric, value from %s order by id', target, old.series);
            execute format('select setval(pg_get_serial_sequence(%L, %L), max(id)) from %s', target, 'id', target);
        end if;

        -- The gauges are counted. They were allowed to drift, so they are not copied.
        perform fetchq.metric_reset(old.folded);

        if exists (select from pg_trigger where tgrelid = old.docs and tgname ~ '__trg_notify_(insert|update)$') then
            perform fetchq.queue_enable_notify(old.folded);
        end if;
        raise notice 'queue "%": % documents', old.folded, n;
    end loop;
    perform setval(pg_get_serial_sequence('fetchq.queues', 'id'), max(id)) from fetchq.queues;

    -- Totals and the users' own metrics. A race of fetchq 4 could leave two rows for one
    -- metric, which were then counted up together: the larger one is right.
    insert into fetchq.metrics (queue, metric, value, updated_at)
    select lower(queue), metric, max(value), max(updated_at)
    from fetchq4.metrics where metric !~ gauges
    group by lower(queue), metric
    order by lower(queue), metric;
    -- Writes that were not packed yet: the next pack applies them.
    insert into fetchq.metrics_writes (created_at, queue, metric, increment, reset)
    select least(coalesce(created_at, now()), now()), lower(queue), metric, increment, reset
    from fetchq4.metrics_writes where metric !~ gauges;

    -- Jobs: what was set, and how far they were.
    update fetchq.jobs j set
        settings = coalesce(o.settings, j.settings), payload = coalesce(o.payload, j.payload),
        iterations = coalesce(o.iterations, 0),
        last_iteration = o.last_iteration, next_iteration = coalesce(o.next_iteration, now())
    from (select distinct on (task, lower(queue)) *, lower(queue) as folded
          from fetchq4.jobs order by task, lower(queue), id) o
    where o.task = j.task and o.folded = j.queue;

    raise notice 'migrated % queues with % documents', (select count(*) from fetchq.queues), total;
end $$;
