-- Killing: the document is never picked again.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_kill');
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_kill');
    perform fetchq.doc_push('rq_kill', 'active', jsonb_build_object('n', 1), '2020-01-01');
    perform fetchq.doc_pick('rq_kill', 0, 1, '1h');
    perform fetchq.doc_push('rq_kill', 'planned', jsonb_build_object('n', 2), '2970-01-01');
    perform fetchq.doc_push('rq_kill', 'pending', jsonb_build_object('n', 3), '2020-01-01');
    perform fetchq.doc_upsert('rq_kill', 'done', 0, 9, '2020-01-01', jsonb_build_object('n', 4));
    perform fetchq.doc_pick('rq_kill', 0, 1, '1h');
    perform fetchq.doc_complete('rq_kill', 'done');
    perform fetchq.doc_upsert('rq_kill', 'dead', 0, 9, '2020-01-01', jsonb_build_object('n', 5));
    perform fetchq.doc_pick('rq_kill', 0, 1, '1h');
    perform fetchq.doc_kill('rq_kill', 'dead');
end $$;
create view test.docs as
select subject, status, attempts, iterations, last_iteration = now() as last_now,
    case when next_iteration = now() + interval '1 hour' then 'end of lease' else (next_iteration at time zone 'UTC')::text end as next, payload
from fetchq_data.rq_kill__docs order by subject;
begin;
select test.fill();
select * from test.docs;
select test.delta('rq_kill');
select * from fetchq.doc_kill('rq_kill', 'active');
select * from test.docs where subject = 'active';
select test.delta('rq_kill');
-- A second call settles nothing.
select * from fetchq.doc_kill('rq_kill', 'active');
select test.delta('rq_kill');
commit;

-- With all arguments.
begin;
select test.fill();
select test.delta('rq_kill');
select * from fetchq.doc_kill('rq_kill', 'active', '{"p": 1}');
select * from test.docs where subject = 'active';
select test.delta('rq_kill');
commit;

-- A payload of NULL leaves the payload as it is.
begin;
select test.fill();
select * from fetchq.doc_kill('rq_kill', 'active', null);
select subject, payload from test.docs where subject = 'active';
commit;

-- Only an active document can be settled: otherwise the result is 0, with a warning.
begin;
select test.fill();
select test.delta('rq_kill') is not null as looked;
select * from fetchq.doc_kill('rq_kill', 'planned');
select * from fetchq.doc_kill('rq_kill', 'pending');
select * from fetchq.doc_kill('rq_kill', 'done');
select * from fetchq.doc_kill('rq_kill', 'dead');
select * from fetchq.doc_kill('rq_kill', 'missing');
select * from fetchq.doc_kill('rq_nope', 'active');
select test.delta('rq_kill');
select subject, status from test.docs;
commit;
set fetchq.strict = on;
select test.error($$select fetchq.doc_kill('rq_kill', 'planned')$$);
select test.error($$select fetchq.doc_kill('rq_kill', 'missing')$$);
select test.error($$select fetchq.doc_kill('rq_nope', 'active')$$);
set fetchq.strict = off;
select test.error($$select fetchq.doc_kill('rq_kill', repeat('x', 256))$$);

-- An expired lease is still valid until maintenance ends it.
select fetchq.queue_set_max_attempts('rq_kill', 5);
select fetchq.queue_truncate('rq_kill', true);
select fetchq.doc_push('rq_kill', 'late');
select subject from fetchq.doc_pick('rq_kill', 0, 1, '0s');
select * from fetchq.doc_kill('rq_kill', 'late');
select test.exact('rq_kill');
select fetchq.queue_truncate('rq_kill', true);
select fetchq.doc_push('rq_kill', 'late');
select subject from fetchq.doc_pick('rq_kill', 0, 1, '0s');
select * from fetchq.mnt_run('rq_kill', 10);
select * from fetchq.doc_kill('rq_kill', 'late');
select test.exact('rq_kill');
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_kill');
