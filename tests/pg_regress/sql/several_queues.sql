-- Calls for several queues at once: docs_next_any, and doc_put_many with a queue in each element; and subjects
-- that the server makes.
select fetchq.queue_create('rq_sq_a') is not null, fetchq.queue_create('rq_sq_b', '{"lease": "50 minutes"}') is not null;
create table held (queue text, subject text, lease bigint, primary key (queue, subject));
create view stored as select 'a' as queue, subject, status, payload, priority, ordering_key, max_attempts, headers, seq from fetchq_data.rq_sq_a__docs
    union all select 'b', subject, status, payload, priority, ordering_key, max_attempts, headers, seq from fetchq_data.rq_sq_b__docs;

-- doc_put_many: the queue of the call, or of the element; without a subject, one that is unique everywhere.
select * from fetchq.doc_put_many('rq_sq_a', '[{"subject": "s1"}, {"subject": "s1", "queue": "rq_sq_b"}, {"subject": "s2", "queue": "RQ_SQ_B", "priority": 3}, {"subject": "s1", "mode": "replace", "payload": {"n": 2}}]');
select queue, subject, priority, payload from stored order by queue, seq;
select action, subject ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' as is_uuid_7
from fetchq.doc_put_many(null, '[{"queue": "rq_sq_a", "payload": {"n": 1}}, {"queue": "rq_sq_b", "subject": null}]');
select count(*), count(distinct subject), bool_and(action = 'created'), array_agg(subject order by n) = array_agg(subject order by subject) as in_order
from fetchq.doc_put_many('rq_sq_a', (select jsonb_agg('{}'::jsonb) from generate_series(1, 1000))) with ordinality x (subject, action, n);
select test.error('select * from fetchq.doc_put_many(' || c || ')') from unnest(array[
    $$null, '[{"queue": "rq_sq_a", "subject": "x"}, {"subject": "y"}]'$$, $$'rq_sq_a', '[{"subject": "x", "queue": "rq_nope"}]'$$,
    $$'rq_nope', '[{"subject": "x", "queue": "rq_sq_a"}]'$$, $$'rq_sq_a', '[{"subject": "x", "queue": "no queue"}]'$$,
    $$'rq_sq_a', '[{"subject": "x", "queue": 7}]'$$, $$'rq_sq_a', '[{"subject": 7}]'$$, $$'rq_sq_a', '[{"nope": 7}]'$$,
    $$'rq_sq_a', '[{"subject": "x"}, {"subject": "y", "queue": "rq_sq_b"}, {"subject": "s1", "queue": "rq_sq_b", "mode": "merge", "payload": []}]'$$,
    $$null, '{}'$$, $$null, null$$]) c;
select queue, count(*) from stored group by queue order by queue;
select test.exact('rq_sq_a'), test.exact('rq_sq_b');
select fetchq.queue_truncate('rq_sq_a'), fetchq.queue_truncate('rq_sq_b');

-- doc_append_many takes what doc_append takes, for all documents of the list; by a statement too.
select count(*) from fetchq.doc_append_many('rq_sq_a', array['{"n": 1}', null, '{"n": 2}']::jsonb[], priority => 4, ordering_key => 'k', max_attempts => 2, delay => '1 hour', headers => '{"trace": "1"}');
set fetchq.direct = off;
select count(*) from fetchq.doc_append_many('rq_sq_a', array['{"n": 3}']::jsonb[], version => null, priority => null, ordering_key => 'k', max_attempts => 2, delay => '1 hour', headers => '{"trace": "1"}');
reset fetchq.direct;
select status, priority, payload, ordering_key, max_attempts, headers from stored order by seq;
select test.error('select * from fetchq.doc_append_many(''rq_sq_a'', array[''{}'']::jsonb[], ' || c || ')') from unnest(array[
    $$ordering_key => repeat('k', 256)$$, $$max_attempts => 0$$, $$delay => '-1 s'$$, $$headers => '[]'$$]) c;
select fetchq.queue_truncate('rq_sq_a');

-- docs_next_any: it settles documents of several queues, and leases the next ones of all.
select count(*) from fetchq.doc_put_many(null, (select jsonb_agg(jsonb_build_object('queue', q, 'subject', 's' || n)) from generate_series(1, 4) n, unnest('{rq_sq_a,rq_sq_b}'::text[]) q));
create function next(settlements jsonb, n int, more text default 'warning') returns table (queue text, subject text, is_long boolean) language sql as $$
    with leased as (select * from fetchq.docs_next_any('{rq_sq_a,rq_sq_b}', settlements, n, on_lost => more)),
    kept as (insert into held select queue, subject, lease from leased)
    select queue, subject, lease_ends - now() > interval '30 minutes' from leased order by queue, subject $$;
select * from next(null, 4);
select * from next((select jsonb_agg(jsonb_build_object('queue', queue, 'subject', subject, 'lease', lease, 'action', 'complete') order by subject desc) from held), 4);
select queue, subject, status from stored order by queue, subject;
-- A settlement that is lost, and one that is repeated; the queue in the settlement may be another one.
select * from next('[{"queue": "rq_sq_a", "subject": "s3", "lease": 7, "action": "complete"}, {"queue": "rq_sq_b", "subject": "nobody", "lease": 7, "action": "drop"}]', 0);
select * from next((select jsonb_agg(jsonb_build_object('queue', queue, 'subject', subject, 'lease', lease, 'action', 'complete')) from held where subject = 's1'), 0);
select count(*) from fetchq.docs_next_any('{rq_sq_a}', (select jsonb_agg(jsonb_build_object('queue', queue, 'subject', subject, 'lease', lease, 'action', 'complete')) from held where queue = 'rq_sq_b' and subject = 's3'), 0);
select count(*) from fetchq.docs_next_any('{rq_sq_a}', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete')) from held where queue = 'rq_sq_a' and subject = 's3'), 0);
select queue, subject, status from stored where subject > 's2' order by queue, subject;
-- All or nothing.
select regexp_replace(test.error($$select * from next((select jsonb_agg(jsonb_build_object('queue', queue, 'subject', subject, 'lease', case when queue = 'rq_sq_b' then 7 else lease end, 'action', 'complete')) from held where subject = 's4'), 1, 'error')$$), 'lease \d+', 'lease N');
select queue, status from stored where subject = 's4' order by queue;
select test.error('select * from fetchq.docs_next_any(' || c || ')') from unnest(array[
    $$'{rq_sq_a,rq_sq_b}', '[{"subject": "s4", "lease": 7, "action": "drop"}]'$$, $$'{}'$$, $$null$$, $$'{rq_sq_a,rq_sq_a}'$$, $$'{rq_nope}'$$,
    $$'{rq_sq_a}', '[{"queue": "rq_nope", "subject": "s4", "lease": 7, "action": "drop"}]'$$,
    $$'{rq_sq_a}', '[{"queue": "no queue", "subject": "s4", "lease": 7, "action": "drop"}]'$$,
    $$'{rq_sq_a}', '[{"queue": 7, "subject": "s4", "lease": 7, "action": "drop"}]'$$,
    $$'{rq_sq_a}', '[{"queue": "rq_sq_b", "subject": "s4", "lease": 7, "action": "drop"}, {"subject": "s4", "lease": 7, "action": "drop"}, {"queue": "rq_sq_b", "subject": "s4", "lease": 7, "action": "drop"}]'$$,
    $$'{rq_sq_a}', '[{"subject": "s4", "lease": 7, "action": "fly"}]'$$, $$'{rq_sq_a}', '{}'$$, $$'{rq_sq_a}', on_lost => 'report'$$,
    $$'{rq_sq_a,rq_sq_b}', weights => '{1}'$$, $$'{rq_sq_a}', max_docs => -1$$]) c;
select test.exact('rq_sq_a'), test.exact('rq_sq_b');
drop function next(jsonb, int, text);
drop view stored;
drop table held;
select a.was_dropped, b.was_dropped from fetchq.queue_drop('rq_sq_a') a, fetchq.queue_drop('rq_sq_b') b;
