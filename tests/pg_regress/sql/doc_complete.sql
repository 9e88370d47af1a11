-- Completing: iterations grow by 1, attempts become 0, and the document is never due again.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_complete');
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_complete');
    perform fetchq.doc_push('rq_complete', 'active', jsonb_build_object('n', 1), '2020-01-01');
    perform fetchq.doc_pick('rq_complete', 0, 1, '1h');
    perform fetchq.doc_push('rq_complete', 'planned', jsonb_build_object('n', 2), '2970-01-01');
    perform fetchq.doc_push('rq_complete', 'pending', jsonb_build_object('n', 3), '2020-01-01');
    perform fetchq.doc_upsert('rq_complete', 'done', 0, 9, '2020-01-01', jsonb_build_object('n', 4));
    perform fetchq.doc_pick('rq_complete', 0, 1, '1h');
    perform fetchq.doc_complete('rq_complete', 'done');
    perform fetchq.doc_upsert('rq_complete', 'dead', 0, 9, '2020-01-01', jsonb_build_object('n', 5));
    perform fetchq.doc_pick('rq_complete', 0, 1, '1h');
    perform fetchq.doc_kill('rq_complete', 'dead');
end $$;
create view test.docs as
select subject, status, attempts, iterations, last_iteration = now() as last_now,
    case when next_iteration = now() + interval '1 hour' then 'end of lease' else (next_iteration at time zone 'UTC')::text end as next, payload
from fetchq_data.rq_complete__docs order by subject;
begin;
select test.fill();
select * from test.docs;
select test.delta('rq_complete');
select * from fetchq.doc_complete('rq_complete', 'active');
select * from test.docs where subject = 'active';
select test.delta('rq_complete');
-- A second call settles nothing.
select * from fetchq.doc_complete('rq_complete', 'active');
select test.delta('rq_complete');
commit;

-- With all arguments.
begin;
select test.fill();
select test.delta('rq_complete');
select * from fetchq.doc_complete('rq_complete', 'active', '{"p": 1}');
select * from test.docs where subject = 'active';
select test.delta('rq_complete');
commit;

-- A payload of NULL leaves the payload as it is.
begin;
select test.fill();
select * from fetchq.doc_complete('rq_complete', 'active', null);
select subject, payload from test.docs where subject = 'active';
commit;

-- Only an active document can be settled: otherwise the result is 0, with a warning.
begin;
select test.fill();
select test.delta('rq_complete') is not null as looked;
select * from fetchq.doc_complete('rq_complete', 'planned');
select * from fetchq.doc_complete('rq_complete', 'pending');
select * from fetchq.doc_complete('rq_complete', 'done');
select * from fetchq.doc_complete('rq_complete', 'dead');
select * from fetchq.doc_complete('rq_complete', 'missing');
select * from fetchq.doc_complete('rq_nope', 'active');
select test.delta('rq_complete');
select subject, status from test.docs;
commit;
set fetchq.strict = on;
select test.error($$select fetchq.doc_complete('rq_complete', 'planned')$$);
select test.error($$select fetchq.doc_complete('rq_complete', 'missing')$$);
select test.error($$select fetchq.doc_complete('rq_nope', 'active')$$);
set fetchq.strict = off;
select test.error($$select fetchq.doc_complete('rq_complete', repeat('x', 256))$$);

-- An expired lease is still valid until maintenance ends it.
select fetchq.queue_set_max_attempts('rq_complete', 5);
select fetchq.queue_truncate('rq_complete', true);
select fetchq.doc_push('rq_complete', 'late');
select subject from fetchq.doc_pick('rq_complete', 0, 1, '0s');
select * from fetchq.doc_complete('rq_complete', 'late');
select test.exact('rq_complete');
select fetchq.queue_truncate('rq_complete', true);
select fetchq.doc_push('rq_complete', 'late');
select subject from fetchq.doc_pick('rq_complete', 0, 1, '0s');
select * from fetchq.mnt_run('rq_complete', 10);
select * from fetchq.doc_complete('rq_complete', 'late');
select test.exact('rq_complete');
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_complete');
