-- Dropping: the document is removed.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_drop');
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_drop');
    perform fetchq.doc_push('rq_drop', 'active', jsonb_build_object('n', 1), '2020-01-01');
    perform fetchq.doc_pick('rq_drop', 0, 1, '1h');
    perform fetchq.doc_push('rq_drop', 'planned', jsonb_build_object('n', 2), '2970-01-01');
    perform fetchq.doc_push('rq_drop', 'pending', jsonb_build_object('n', 3), '2020-01-01');
    perform fetchq.doc_upsert('rq_drop', 'done', 0, 9, '2020-01-01', jsonb_build_object('n', 4));
    perform fetchq.doc_pick('rq_drop', 0, 1, '1h');
    perform fetchq.doc_complete('rq_drop', 'done');
    perform fetchq.doc_upsert('rq_drop', 'dead', 0, 9, '2020-01-01', jsonb_build_object('n', 5));
    perform fetchq.doc_pick('rq_drop', 0, 1, '1h');
    perform fetchq.doc_kill('rq_drop', 'dead');
end $$;
create view test.docs as
select subject, status, attempts, iterations, last_iteration = now() as last_now,
    case when next_iteration = now() + interval '1 hour' then 'end of lease' else (next_iteration at time zone 'UTC')::text end as next, payload
from fetchq_data.rq_drop__docs order by subject;
begin;
select test.fill();
select * from test.docs;
select test.delta('rq_drop');
select * from fetchq.doc_drop('rq_drop', 'active');
select * from test.docs where subject = 'active';
select test.delta('rq_drop');
-- A second call settles nothing.
select * from fetchq.doc_drop('rq_drop', 'active');
select test.delta('rq_drop');
commit;

-- The subject is free again.
select * from fetchq.doc_push('rq_drop', 'active');
select subject, iterations from test.docs where subject = 'active';

-- Only an active document can be settled: otherwise the result is 0, with a warning.
begin;
select test.fill();
select test.delta('rq_drop') is not null as looked;
select * from fetchq.doc_drop('rq_drop', 'planned');
select * from fetchq.doc_drop('rq_drop', 'pending');
select * from fetchq.doc_drop('rq_drop', 'done');
select * from fetchq.doc_drop('rq_drop', 'dead');
select * from fetchq.doc_drop('rq_drop', 'missing');
select * from fetchq.doc_drop('rq_nope', 'active');
select test.delta('rq_drop');
select subject, status from test.docs;
commit;
set fetchq.strict = on;
select test.error($$select fetchq.doc_drop('rq_drop', 'planned')$$);
select test.error($$select fetchq.doc_drop('rq_drop', 'missing')$$);
select test.error($$select fetchq.doc_drop('rq_nope', 'active')$$);
set fetchq.strict = off;
select test.error($$select fetchq.doc_drop('rq_drop', repeat('x', 256))$$);

-- An expired lease is still valid until maintenance ends it.
select fetchq.queue_set_max_attempts('rq_drop', 5);
select fetchq.queue_truncate('rq_drop', true);
select fetchq.doc_push('rq_drop', 'late');
select subject from fetchq.doc_pick('rq_drop', 0, 1, '0s');
select * from fetchq.doc_drop('rq_drop', 'late');
select test.exact('rq_drop');
select fetchq.queue_truncate('rq_drop', true);
select fetchq.doc_push('rq_drop', 'late');
select subject from fetchq.doc_pick('rq_drop', 0, 1, '0s');
select * from fetchq.mnt_run('rq_drop', 10);
select * from fetchq.doc_drop('rq_drop', 'late');
select test.exact('rq_drop');
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_drop');
