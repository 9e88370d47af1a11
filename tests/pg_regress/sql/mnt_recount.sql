-- The recount repairs the gauges after plain SQL of a console, and changes nothing else.
select was_created from fetchq.queue_create('rq_count');
update fetchq.jobs set next_iteration = '2970-01-01';
create function test.recount() returns text language plpgsql as $$
declare
    done record;
begin
    update fetchq.jobs set next_iteration = '2020-01-01' where queue = 'rq_count' and task = 'cmp';
    select * into done from fetchq.mnt_job_run(1);
    return done.success || ' ' || done.processed || ': ' || test.exact('rq_count');
end $$;
select fetchq.doc_push('rq_count', 's' || i, i % 3, 0, case when i > 6 then timestamptz '2970-01-01' else '2020-01-01' end, '{}') from generate_series(1, 9) i;
select count(*) from fetchq.doc_pick('rq_count', 0, 2, '1h');
select fetchq.doc_complete('rq_count', 's3');
select fetchq.metric_set('rq_count', 'mine', 42);
select fetchq.metric_set('rq_count', 'version', 43);
select test.recount();
select test.delta('rq_count') is not null as looked;

-- An update, a delete and an insert, packed or not.
update fetchq_data.rq_count__docs set status = -1 where subject = 's1';
delete from fetchq_data.rq_count__docs where subject in ('s2', 's3');
insert into fetchq_data.rq_count__docs (subject, status, version) values ('raw', 1, 12);
select test.exact('rq_count');
select test.recount();
select test.delta('rq_count');
select fetchq.metric_log_pack() > 0 as packed;
select test.exact('rq_count');
delete from fetchq_data.rq_count__docs where version = 12;
select fetchq.doc_push('rq_count', 'new', 12, 0, '2020-01-01', '{}');
select test.exact('rq_count');
select test.recount();
select test.delta('rq_count');

-- Truncated: all gauges become 0, also those of missing versions; totals and other metrics stay.
truncate fetchq_data.rq_count__docs;
select test.exact('rq_count');
select test.recount();
select metric, current_value from fetchq.metric_get('rq_count');

-- Without a difference nothing is written.
select fetchq.metric_log_pack() >= 0 as packed;
create temp table written as select metric, ctid as at from fetchq.metrics where queue = 'rq_count';
select test.recount();
select metric from fetchq.metrics m where queue = 'rq_count' and not exists (select from written w where w.metric = m.metric and w.at = m.ctid);
drop table written;

-- Deleted metrics are counted and stored again.
select fetchq.doc_push('rq_count', 'again');
truncate fetchq.metrics;
truncate fetchq.counter_log;
select test.exact('rq_count');
select test.recount();
select metric, current_value from fetchq.metric_get('rq_count');

-- A custom metric is not a version, although its name begins like one.
select fetchq.metric_set('rq_count', 'v007', 7);
select fetchq.metric_set('rq_count', 'v1x', 8);
select test.recount();
select metric, current_value from fetchq.metric_get('rq_count') where metric in ('v007', 'v1x');

-- A thousand versions are counted one by one, the others together: before and after a pack, a recount,
-- and when documents of both kinds leave. The view and the function say the same.
select metric_reset is not null as reset from fetchq.metric_reset('rq_count');
select count(*) from (select fetchq.doc_push('rq_count', 'v' || n, n, 0, '2020-01-01', '{}') from generate_series(1, 1203) n) p;
create function test.versions() returns table (own bigint, counted bigint, other bigint, cnt bigint, is_same boolean, missing bigint) language sql as $$
    select count(*) filter (where metric ~ '^v(0|-?[1-9][0-9]{0,9})$'),
        sum(current_value) filter (where metric ~ '^v(0|-?[1-9][0-9]{0,9})$'),
        sum(current_value) filter (where metric = 'v_other'), sum(current_value) filter (where metric = 'cnt'),
        bool_and(current_value = (select value from fetchq.metrics_exact e where e.queue = 'rq_count' and e.metric = g.metric)),
        count(*) filter (where current_value < 0)
    from fetchq.metric_get('rq_count') g $$;
select fetchq.metric_log_pack() > 0 as packed;
select * from test.versions();
select left(test.recount(), 7) as recounted;
select * from test.versions();
select affected from fetchq.docs_drop('rq_count', '{"version": [5, 1100, 1101]}');
select * from test.versions();
select fetchq.doc_push('rq_count', 'more', 5000, 0, '2020-01-01', '{}'), fetchq.doc_push('rq_count', 'own', 3, 0, '2020-01-01', '{}');
select * from test.versions();
select fetchq.metric_log_pack() > 0 as packed;
select * from test.versions();
delete from fetchq_data.rq_count__docs where version > 1000;
select left(test.recount(), 7) as recounted;
select * from test.versions();
select fetchq.doc_push('rq_count', 'later', 6000, 0, '2020-01-01', '{}');
select metric_reset is not null as reset from fetchq.metric_reset('rq_count');
select * from test.versions();
drop function test.versions();
drop function test.recount();
update fetchq.jobs set next_iteration = now();
select was_dropped from fetchq.queue_drop('rq_count');
