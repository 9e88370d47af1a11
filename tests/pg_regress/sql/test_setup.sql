-- Helpers for the other tests, in their own schema. No test leaves a queue behind.
create schema test;

-- The SQLSTATE, message and hint of a command that fails, without line numbers.
create function test.error(command text) returns text language plpgsql as $$
declare
    state text;
    message text;
    hint text;
begin
    execute command;
    return 'no error';
exception when others then
    get stacked diagnostics state = returned_sqlstate, message = message_text, hint = pg_exception_hint;
    return state || ' ' || message || case when hint <> '' then ' | ' || hint else '' end;
end $$;

-- The changes in the metrics of a queue since the session's last call. A rollback also undoes the
-- memory of that call.
create function test.delta(queue text) returns text language plpgsql as $$
declare
    changed text;
begin
    if to_regclass('pg_temp.seen') is null then
        create temp table seen (queue text, metric text, value bigint);
    end if;
    select string_agg(d.metric || case when d.n > 0 then '+' else '' end || d.n, ' ' order by d.metric collate "C")
    into changed
    from (
        select coalesce(n.metric, s.metric) as metric, coalesce(n.current_value, 0) - coalesce(s.value, 0) as n
        from fetchq.metric_get($1) n
        full join (select * from pg_temp.seen x where x.queue = $1) s on s.metric = n.metric
    ) d
    where d.n <> 0;
    delete from pg_temp.seen s where s.queue = $1;
    insert into pg_temp.seen select $1, g.metric, g.current_value from fetchq.metric_get($1) g;
    return coalesce(changed, 'nothing');
end $$;

-- 'exact', or the gauges that differ from a count of the documents.
create function test.exact(queue text) returns text language plpgsql as $$
declare
    wrong text;
begin
    execute format($q$
        with docs as (select status, version from fetchq_data.%I),
        real as (
            select 'cnt' as metric, count(*) as n from docs
            union all select 'pln', count(*) from docs where status = 0
            union all select 'pnd', count(*) from docs where status = 1
            union all select 'act', count(*) from docs where status = 2
            union all select 'cpl', count(*) from docs where status = 3
            union all select 'kll', count(*) from docs where status = -1
            union all select 'v' || version, count(*) from docs group by version
        ),
        told as (
            select metric::text, current_value from fetchq.metric_get(%L)
            where metric in ('cnt', 'pln', 'pnd', 'act', 'cpl', 'kll') or metric ~ '^v(0|-?[1-9][0-9]{0,9})$'
        )
        select string_agg(format('%%s is %%s, told %%s', metric, coalesce(n, 0), coalesce(current_value, 0)), '; ' order by metric)
        from real full join told using (metric)
        where coalesce(n, 0) <> coalesce(current_value, 0)$q$, lower(queue) || '__docs', queue)
    into wrong;
    return coalesce(wrong, 'exact');
end $$;

-- The extension exists, and no queue does.
select extname from pg_extension where extname = 'fetchq';
select count(*) from fetchq.queues;
