-- The contract as the catalog reports it: names, arguments, results, tables.
select was_created from fetchq.queue_create('rq_contract');
\pset format unaligned
\pset tuples_only on

-- Every function: arguments, kind of result, result columns, volatility, and the properties that
-- differ from the default of this extension.
select p.proname || '('
    || coalesce((
        select string_agg(p.proargnames[i] || ' ' || format_type(p.proargtypes[i - 1], null)
            || case when i > p.pronargs - p.pronargdefaults then ' default' else '' end, ', ' order by i)
        from generate_series(1, p.pronargs) i), '')
    || ') '
    || case
        when p.prorettype = 'trigger'::regtype then 'trigger'
        -- A named type of rows.
        when p.prorettype in (select t.oid from pg_type t where t.typtype = 'c') then (
            select 'set of ' || p.prorettype::regtype || ' (' || string_agg(a.attname || ' ' || format_type(a.atttypid, null), ', ' order by a.attnum) || ')'
            from pg_attribute a
            join pg_type t on t.typrelid = a.attrelid
            where t.oid = p.prorettype and a.attnum > 0)
        else (
            select case when p.prokind = 'p' then 'procedure' when p.proretset then 'set' when count(*) > 1 then 'record' else 'scalar' end
                || ' (' || string_agg(p.proargnames[i] || ' ' || format_type(p.proallargtypes[i], null), ', ' order by i) || ')'
            from generate_series(1, cardinality(p.proallargtypes)) i
            where p.proargmodes[i] in ('o', 't', 'b'))
    end
    || case p.provolatile when 'i' then ' immutable' when 's' then ' stable' else ' volatile' end
    || case when p.proisstrict then ' STRICT' else '' end
    || case when p.prosecdef then ' SECURITY DEFINER' else '' end
    || case when p.proparallel <> 'u' then ' PARALLEL' else '' end
from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace
order by p.proname collate "C", p.pronargs, oidvectortypes(p.proargtypes) collate "C";

-- Every argument must have a name, and every function, table and view a comment.
select p.proname from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace
    and p.pronargs > 0 and (p.proargnames is null or '' = any (p.proargnames));
select p.proname from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace
    and coalesce(obj_description(p.oid, 'pg_proc'), '') = '';
select c.relname from pg_class c
where c.relnamespace = 'fetchq'::regnamespace and c.relkind in ('r', 'v')
    and coalesce(obj_description(c.oid, 'pg_class'), '') = '';

-- The registry tables, then the tables of a queue.
create view test.columns as
select n.nspname || '.' || c.relname as table_name, a.attnum,
    a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || case when a.attcollation = 'pg_catalog."C"'::regcollation then ' collate "C"' else '' end
    || case when a.attnotnull then ' not null' else '' end
    || case a.attidentity when 'a' then ' always identity' when 'd' then ' by default identity' else '' end
    || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') as definition
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relkind in ('r', 'v');
select table_name || ': ' || definition from test.columns
where table_name like 'fetchq.%'
order by table_name collate "C", attnum;
select table_name || ': ' || definition from test.columns
where table_name like 'fetchq\_data.rq\_contract\_\_%'
order by table_name collate "C", attnum;
drop view test.columns;

-- The indexes, and the storage options that were chosen for a reason.
select pg_get_indexdef(i.indexrelid) || case when i.indisprimary then ' (primary key)' else '' end
from pg_index i
join pg_class c on c.oid = i.indrelid
join pg_class x on x.oid = i.indexrelid
where c.relnamespace = 'fetchq'::regnamespace
    or (c.relnamespace = 'fetchq_data'::regnamespace and c.relname like 'rq\_contract\_\_%')
order by c.relname collate "C", x.relname collate "C";
select c.relname || ': ' || array_to_string(c.reloptions, ', ')
from pg_class c
where c.reloptions is not null and c.relkind = 'r'
    and (c.relnamespace = 'fetchq'::regnamespace
        or (c.relnamespace = 'fetchq_data'::regnamespace and c.relname like 'rq\_contract\_\_%'))
order by c.relname collate "C";

-- Triggers.
select c.relname || ': ' || t.tgname || ' calls ' || p.proname
from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid
where not t.tgisinternal and c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace)
order by c.relname collate "C", t.tgname collate "C";

-- Members of the extension: all objects of schema fetchq, but no table of a queue, because pg_dump
-- would omit its documents.
create view test.members as
select d.classid, d.objid from pg_depend d
join pg_extension e on e.oid = d.refobjid and e.extname = 'fetchq'
where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e';
select n.nspname || ' is a member' from pg_namespace n
join test.members m on m.classid = 'pg_namespace'::regclass and m.objid = n.oid
order by n.nspname collate "C";
select n.nspname || '.' || c.relname || case when m.objid is null then ' is no member' else ' is a member' end
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join test.members m on m.classid = 'pg_class'::regclass and m.objid = c.oid
where n.nspname in ('fetchq', 'fetchq_data') and c.relkind in ('r', 'v', 'S')
order by n.nspname collate "C", c.relname collate "C";
select p.proname || ' is no member' from pg_proc p
where p.pronamespace = 'fetchq'::regnamespace
    and not exists (select from test.members m where m.classid = 'pg_proc'::regclass and m.objid = p.oid);
drop view test.members;

-- The tables that pg_dump carries: all except the table of counter events.
select t.config::regclass || coalesce(' where ' || nullif(e.extcondition[t.n], ''), '')
from pg_extension e, unnest(e.extconfig) with ordinality t (config, n)
where e.extname = 'fetchq'
order by t.config::regclass::text collate "C";

-- The rows that the extension and a new queue insert into the tables.
select task || ' of ' || queue || ': ' || settings || ' ' || payload from fetchq.jobs
where queue in ('*', 'rq_contract') order by queue collate "C", id;
select name, is_active, current_version, max_attempts, logs_retention, metrics_retention, config
from fetchq.queues where name = 'rq_contract';
select event || ' ' || name || ': ' || string_agg(case sign when 1 then '+' else '-' end || metric, ' ' order by sign desc, metric collate "C")
from fetchq.counter_events group by event, name order by event;

-- The version check and the calls of old clients.
select version, extension_version = library_version from fetchq.info();
select * from fetchq.init();
select * from fetchq.upgrade__310__320();
select * from fetchq.upgrade__320__330();
select * from fetchq.upgrade__330__400();

-- varchar variables, untyped literals, parameters and named arguments all resolve.
prepare push_text (varchar, varchar, jsonb) as select * from fetchq.doc_push($1, $2, $3);
execute push_text('rq_contract', 's1', '{}');
prepare pick_text (varchar, int, int, varchar) as select subject from fetchq.doc_pick($1, $2, $3, $4);
execute pick_text('rq_contract', 0, 1, '5m');
prepare pick_interval (varchar, int, int, interval) as select count(*) from fetchq.doc_pick($1, $2, $3, $4);
execute pick_interval('rq_contract', 0, 1, '5m');
prepare push_many (varchar, int, timestamptz, text) as select * from fetchq.doc_push($1, $2, $3, $4);
execute push_many('rq_contract', 0, '2020-01-01', '(''s2'', 0, ''{}'', {DATA})');
prepare push_unknown as select * from fetchq.doc_push($1, $2, $3, $4);
execute push_unknown('rq_contract', 's3', '{}', '2020-01-01');
prepare push_full_unknown as select * from fetchq.doc_push($1, $2, $3, $4, $5, $6);
execute push_full_unknown('rq_contract', 's4', 0, 0, '2020-01-01', '{}');
prepare pick_unknown as select subject from fetchq.doc_pick($1, $2, $3, $4) order by subject;
execute pick_unknown('rq_contract', 0, 5, '5m');
prepare complete_unknown as select * from fetchq.doc_complete($1, $2);
execute complete_unknown('rq_contract', 's2');
prepare reject_unknown as select * from fetchq.doc_reject($1, $2, $3, $4);
execute reject_unknown('rq_contract', 's3', 'no', '{}');
select * from fetchq.doc_push('rq_contract', 's5');
select subject from fetchq.doc_pick('rq_contract');
select * from fetchq.doc_push('rq_contract', 's6');
select subject from fetchq.doc_pick('rq_contract', '5m');
select * from fetchq.doc_push('rq_contract', 's7');
select subject from fetchq.doc_pick('rq_contract', interval '5m');
select * from fetchq.doc_push('rq_contract', 's8');
select subject from fetchq.doc_pick('rq_contract', 1);
select * from fetchq.doc_push('rq_contract', 's9', '{}', '2020-01-01');
select subject from fetchq.doc_pick(queue => 'rq_contract', version => 0, max_docs => 1, duration => interval '5m');
select * from fetchq.doc_reschedule(queue => 'rq_contract', subject => 's9', due_at => '2020-01-01');
select * from fetchq.queue_drop_logs('rq_contract', '24h');
select * from fetchq.queue_drop_logs('rq_contract', '2000-01-01'::timestamptz);
do $$
declare
    q varchar := 'rq_contract';
    s varchar := 's9';
    i varchar := '5m';
begin
    perform fetchq.doc_pick(q, i);
    perform fetchq.doc_complete(q, s);
    perform fetchq.metric_get(q, 'cnt'::varchar);
    perform fetchq.metric_snap(q, 'cnt'::varchar);
    perform fetchq.metric_log_increment(q, 'cnt'::varchar, 0);
end $$;
select status from fetchq_data.rq_contract__docs where subject = 's9';
select was_dropped from fetchq.queue_drop('rq_contract');
