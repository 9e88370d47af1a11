-- Rescheduling: planned for its next iteration.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_reschedule');
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_reschedule');
    perform fetchq.doc_push('rq_reschedule', 'active', jsonb_build_object('n', 1), '2020-01-01');
    perform fetchq.doc_pick('rq_reschedule', 0, 1, '1h');
    perform fetchq.doc_push('rq_reschedule', 'planned', jsonb_build_object('n', 2), '2970-01-01');
    perform fetchq.doc_push('rq_reschedule', 'pending', jsonb_build_object('n', 3), '2020-01-01');
    perform fetchq.doc_upsert('rq_reschedule', 'done', 0, 9, '2020-01-01', jsonb_build_object('n', 4));
    perform fetchq.doc_pick('rq_reschedule', 0, 1, '1h');
    perform fetchq.doc_complete('rq_reschedule', 'done');
    perform fetchq.doc_upsert('rq_reschedule', 'dead', 0, 9, '2020-01-01', jsonb_build_object('n', 5));
    perform fetchq.doc_pick('rq_reschedule', 0, 1, '1h');
    perform fetchq.doc_kill('rq_reschedule', 'dead');
end $$;
create view test.docs as
select subject, status, attempts, iterations, last_iteration = now() as last_now,
    case when next_iteration = now() + interval '1 hour' then 'end of lease' else (next_iteration at time zone 'UTC')::text end as next, payload
from fetchq_data.rq_reschedule__docs order by subject;
begin;
select test.fill();
select * from test.docs;
select test.delta('rq_reschedule');
select * from fetchq.doc_reschedule('rq_reschedule', 'active', '2970-01-01');
select * from test.docs where subject = 'active';
select test.delta('rq_reschedule');
-- A second call settles nothing.
select * from fetchq.doc_reschedule('rq_reschedule', 'active', '2970-01-01');
select test.delta('rq_reschedule');
commit;

-- With all arguments.
begin;
select test.fill();
select test.delta('rq_reschedule');
select * from fetchq.doc_reschedule('rq_reschedule', 'active', '2020-01-01', '{"p": 1}');
select * from test.docs where subject = 'active';
select test.delta('rq_reschedule');
commit;

-- A document planned for now() is due, a microsecond later it is not; infinity is never due.
begin;
select test.fill();
select * from fetchq.doc_reschedule('rq_reschedule', 'active', now());
select subject, status, payload from test.docs where subject = 'active';
select subject from fetchq.doc_pick('rq_reschedule', 0, 1, '1h');
select * from fetchq.doc_reschedule('rq_reschedule', 'active', now() + interval '1 microsecond', null);
select subject, status, payload from test.docs where subject = 'active';
update fetchq_data.rq_reschedule__docs set status = 2 where subject = 'active';
select * from fetchq.doc_reschedule('rq_reschedule', 'active', 'infinity', '{"n": "new"}');
select subject, status, next, payload from test.docs where subject = 'active';
update fetchq_data.rq_reschedule__docs set status = 2 where subject = 'active';
select * from fetchq.doc_reschedule('rq_reschedule', 'active', '-infinity', '{"n": "new"}');
select subject, status, next, payload from test.docs where subject = 'active';
rollback;

-- Only an active document can be settled: otherwise the result is 0, with a warning.
begin;
select test.fill();
select test.delta('rq_reschedule') is not null as looked;
select * from fetchq.doc_reschedule('rq_reschedule', 'planned', '2970-01-01');
select * from fetchq.doc_reschedule('rq_reschedule', 'pending', '2970-01-01');
select * from fetchq.doc_reschedule('rq_reschedule', 'done', '2970-01-01');
select * from fetchq.doc_reschedule('rq_reschedule', 'dead', '2970-01-01');
select * from fetchq.doc_reschedule('rq_reschedule', 'missing', '2970-01-01');
select * from fetchq.doc_reschedule('rq_nope', 'active', '2970-01-01');
select test.delta('rq_reschedule');
select subject, status from test.docs;
commit;
set fetchq.strict = on;
select test.error($$select fetchq.doc_reschedule('rq_reschedule', 'planned', '2970-01-01')$$);
select test.error($$select fetchq.doc_reschedule('rq_reschedule', 'missing', '2970-01-01')$$);
select test.error($$select fetchq.doc_reschedule('rq_nope', 'active', '2970-01-01')$$);
set fetchq.strict = off;
select test.error($$select fetchq.doc_reschedule('rq_reschedule', repeat('x', 256), '2970-01-01')$$);

-- An expired lease is still valid until maintenance ends it.
select fetchq.queue_set_max_attempts('rq_reschedule', 5);
select fetchq.queue_truncate('rq_reschedule', true);
select fetchq.doc_push('rq_reschedule', 'late');
select subject from fetchq.doc_pick('rq_reschedule', 0, 1, '0s');
select * from fetchq.doc_reschedule('rq_reschedule', 'late', '2970-01-01');
select test.exact('rq_reschedule');
select fetchq.queue_truncate('rq_reschedule', true);
select fetchq.doc_push('rq_reschedule', 'late');
select subject from fetchq.doc_pick('rq_reschedule', 0, 1, '0s');
select * from fetchq.mnt_run('rq_reschedule', 10);
select * from fetchq.doc_reschedule('rq_reschedule', 'late', '2970-01-01');
select test.exact('rq_reschedule');
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_reschedule');
