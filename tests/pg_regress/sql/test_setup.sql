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

-- The number of the lease that holds a document, for what a test settles in place of its worker.
create function test.lease_of(queue text, subject text) returns bigint language sql as
$$ select l.lease from fetchq.lease_list($1) l where l.subject = $2 $$;

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

-- A valid value of an argument of a function of fetchq, as a text of SQL.
create function test.value(argument text, type text, queue text default 'rq_err') returns text language sql as $$
    select case type
        when 'text' then case argument
            when 'queue' then quote_literal(queue) when 'place' then '''''' when 'subject' then '''absent''' when 'message' then '''m''' when 'metric' then '''null test'''
            when 'documents' then $q$'(''s1'', 0, ''{}'', {DATA})'$q$ when 'retention' then '''1h''' when 'direction' then '''ASC'''
            when 'table_name' then '''fetchq_data.rq_err__logs''' when 'field' then '''created_at''' when 'unit' then '''hour''' when 'family' then '''fetchq_info''' when 'mode' then '''ignore''' when 'target' then '''rq_err2''' when 'setting' then '''max_attempts''' when 'role' then '''pg_monitor''' when 'kind' then '''reader''' when 'binding' then '''off''' when 'on_lost' then '''error''' when 'after' then '''1-1''' when 'catch_up' then '''once''' when 'timezone' then '''UTC''' else '''5m''' end || '::text'
        when 'integer' then case when argument in ('max_attempts', 'catch_up_limit') then '1' else '0' end
        when 'bigint' then '1'
        when 'double precision' then '1'
        when 'boolean' then 'false'
        when 'jsonb' then case argument when 'policy' then '''[]''' when 'value' then '''7''' when 'filter' then '''{"subject": "s1"}''' when 'metrics' then '''[]''' when 'docs' then '''[]''' when 'settlements' then '''[]''' else '''{}''' end || '::jsonb'
        when 'interval' then case when argument in ('delay', 'unique_per') then 'null::interval' else 'interval ''5m''' end
        when 'text[]' then case argument when 'unique_by' then 'null::text[]' when 'queues' then 'array[' || quote_literal(queue) || ']' else 'array[''s1'']' end
        when 'integer[]' then 'array[1]'
        when 'jsonb[]' then 'array[''{}'']::jsonb[]'
        else 'timestamptz ''2020-01-01''' end;
$$;
