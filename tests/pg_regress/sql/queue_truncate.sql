-- Truncating queues.
select was_created from fetchq.queue_create('rq_trunc');
select was_created from fetchq.queue_create('rq_trunc2');
create function test.fill(queue text) returns void language plpgsql as $$
begin
    perform fetchq.doc_push(queue, 's' || i) from generate_series(1, 3) i;
    perform fetchq.doc_pick(queue);
    perform fetchq.doc_reject(queue, 's1', 'no', '{}');
    perform fetchq.metric_set(queue, 'mine', 5);
    perform fetchq.metric_snap(queue);
    update fetchq.jobs j set iterations = 7, attempts = 2, last_iteration = '2020-01-01', next_iteration = '2970-01-01' where j.queue = $1;
end $$;
create function test.left(queue text, out docs bigint, out logs bigint, out has_snapshots boolean, out jobs text) language plpgsql as $$
begin
    execute format('select count(*) from fetchq_data.%I', queue || '__docs') into docs;
    execute format('select count(*) from fetchq_data.%I', queue || '__logs') into logs;
    execute format('select count(*) > 0 from fetchq_data.%I', queue || '__metrics') into has_snapshots;
    select string_agg(distinct format('%s iterations, %s attempts, %s', j.iterations, j.attempts,
        case when j.next_iteration <= now() and j.last_iteration is null then 'as new' else 'as they were' end), '; ')
    into jobs from fetchq.jobs j where j.queue = $1;
end $$;
select test.fill('rq_trunc');
select test.fill('rq_trunc2');
select * from test.left('rq_trunc');

-- Documents are removed; logs, snapshots and jobs stay; the metrics are recounted.
select * from fetchq.queue_truncate('rq_trunc');
select * from test.left('rq_trunc');
select metric, current_value from fetchq.metric_get('rq_trunc');
select test.exact('rq_trunc');
select * from test.left('rq_trunc2');
select test.exact('rq_trunc2');

-- The same subjects can be pushed again.
select test.fill('rq_trunc');
select test.exact('rq_trunc');
select * from fetchq.queue_truncate('rq_trunc', false);
select docs from test.left('rq_trunc');

-- With true everything is removed, and the jobs start again.
select test.fill('rq_trunc');
select * from fetchq.queue_truncate('rq_trunc', true);
select * from test.left('rq_trunc');
select metric, current_value from fetchq.metric_get('rq_trunc');

-- After a rollback everything is unchanged.
select test.fill('rq_trunc');
begin;
select * from fetchq.queue_truncate('rq_trunc', true);
rollback;
select * from test.left('rq_trunc');
select test.exact('rq_trunc');
select current_value from fetchq.metric_get('rq_trunc', 'mine');

-- All queues.
select * from fetchq.queue_truncate_all();
select * from test.left('rq_trunc');
select * from test.left('rq_trunc2');
select * from fetchq.queue_truncate_all(true);
select * from test.left('rq_trunc');
select * from test.left('rq_trunc2');
select queue, cnt, pnd, ent from fetchq.metric_get_all();

-- A console truncates the table with plain SQL: documents can be pushed, and a reset recounts.
select fetchq.doc_push('rq_trunc', 's1');
truncate fetchq_data.rq_trunc__docs;
select fetchq.doc_push('rq_trunc', 's1');
select test.exact('rq_trunc');
select * from fetchq.metric_reset('rq_trunc');
select test.exact('rq_trunc');
select test.error($$select fetchq.queue_truncate('rq_nope')$$);
drop function test.fill(text);
drop function test.left(text);
select was_dropped from fetchq.queue_drop('rq_trunc');
select was_dropped from fetchq.queue_drop('rq_trunc2');
