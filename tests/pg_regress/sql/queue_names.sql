-- Queue names: [A-Za-z_][A-Za-z0-9_]{0,39}, folded to lower case.
\set VERBOSITY terse
select was_created from fetchq.queue_create('Foo');
select was_created from fetchq.queue_create('foo');
select was_created from fetchq.queue_create('order');
select was_created from fetchq.queue_create('_');
select was_created from fetchq.queue_create('q1_');
select was_created from fetchq.queue_create('a234567890123456789012345678901234567890');
select was_created from fetchq.queue_create('a23456789012345678901234567890123456789b');
select name from fetchq.queues order by name collate "C";
select relname from pg_class where relnamespace = 'fetchq_data'::regnamespace and relkind in ('r', 'i')
order by relname collate "C";

-- All valid names work, in upper and lower case, with every function that builds a name.
create function test.round(queue text) returns text language plpgsql as $$
declare
    s text;
begin
    perform fetchq.queue_enable_notify(queue);
    perform fetchq.doc_push(queue, 'a');
    perform fetchq.doc_upsert(queue, 'a', 0, 7, now(), '{}');
    perform fetchq.doc_push(queue, 0, now(), $l$('b', 0, '{}', {DATA})$l$);
    perform fetchq.doc_append(queue, '{}');
    perform fetchq.doc_pick(queue, 0, 3, '5m');
    perform fetchq.doc_complete(queue, 'a');
    perform fetchq.doc_reject(queue, 'b', 'no', '{}');
    perform fetchq.log_error(queue, 'b', 'no', '{}');
    perform fetchq.metric_snap(queue);
    perform fetchq.mnt_run(queue, 10);
    perform fetchq.queue_top(queue, 0, 10, 0);
    perform fetchq.queue_drop_logs(queue, '1h');
    perform fetchq.queue_drop_metrics(queue, '[{"retain": "hour", "from": "2h", "to": "1h"}]');
    perform fetchq.queue_drop_indexes(queue);
    perform fetchq.queue_create_indexes(queue);
    s := (select m.current_value from fetchq.metric_get(queue, 'cnt') m) || ' ' || test.exact(queue);
    perform fetchq.queue_truncate(queue, true);
    perform fetchq.queue_disable_notify(queue);
    return s || ' ' || test.exact(queue);
end $$;
select test.round('foo');
select test.round('FOO');
select test.round('order');
select test.round('Order');
select test.round('_');
select test.round('a234567890123456789012345678901234567890');
select test.round('A23456789012345678901234567890123456789B');
drop function test.round(text);
select name from fetchq.queue_status('ORDER');
select was_dropped from fetchq.queue_drop('foo');
select was_dropped from fetchq.queue_drop('Order');
select was_dropped from fetchq.queue_drop('_');
select was_dropped from fetchq.queue_drop('q1_');
select was_dropped from fetchq.queue_drop('a234567890123456789012345678901234567890');
select was_dropped from fetchq.queue_drop('a23456789012345678901234567890123456789b');

-- All other names are an error that states the rule, in every function that has a queue argument.
select n as name, test.error(format('select fetchq.queue_create(%L)', n)) from unnest(array[
    '', ' ', 'q ', ' q', '1q', 'a-b', 'a.b', 'fetchq.q', 'é', 'straße', 'q;', '"q"', '''', 'x"; drop table fetchq.queues; --',
    '*', 'q$', E'q\n', E'q\t', 'a2345678901234567890123456789012345678901', repeat('x', 1000)]) n;
select p.proname, p.pronargs, count(*) filter (where test.error(format(
    'select * from fetchq.%I(%s)', p.proname,
    array_to_string(array(
        select case when i = 1 then '''x"; drop table fetchq.queues; --'''
            else case format_type(p.proargtypes[i - 1], null)
                when 'text' then case when p.proargnames[i] = 'retention' and p.proname like '%metrics%' then '''[]''' else '''5m''' end || '::text'
                when 'integer' then '1' when 'bigint' then '1' when 'double precision' then '1' when 'boolean' then 'true'
                when 'text[]' then 'array[''s1'']' when 'jsonb[]' then 'array[''{}'']::jsonb[]'
                when 'jsonb' then '''[]''::jsonb' when 'interval' then '''5m''::interval' else 'now()' end end
        from generate_series(1, p.pronargs) i order by i), ', '))) like '42602 invalid queue name%') as refused
from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace and p.proargnames[1] = 'queue' and p.pronargs > 0 and p.prokind = 'f'
group by p.proname, p.pronargs, p.oid
order by p.proname collate "C", p.pronargs, p.oid;
select count(*) from fetchq.queues;

-- An invalid row that a client has inserted into the registry is reported and skipped.
insert into fetchq.queues (name) values ('not a queue');
select * from fetchq.mnt_run_all(10);
select * from fetchq.metric_get_all();
delete from fetchq.queues where name = 'not a queue';

-- The name is unique.
select was_created from fetchq.queue_create('rq_names');
select test.error($$insert into fetchq.queues (name) values ('rq_names')$$);
select was_dropped from fetchq.queue_drop('rq_names');
