-- Rejecting: the document is retried after a failure, which is logged.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_reject');
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_reject');
    perform fetchq.doc_push('rq_reject', 'active', jsonb_build_object('n', 1), '2020-01-01');
    perform fetchq.doc_pick('rq_reject', 0, 1, '1h');
    perform fetchq.doc_push('rq_reject', 'planned', jsonb_build_object('n', 2), '2970-01-01');
    perform fetchq.doc_push('rq_reject', 'pending', jsonb_build_object('n', 3), '2020-01-01');
    perform fetchq.doc_upsert('rq_reject', 'done', 0, 9, '2020-01-01', jsonb_build_object('n', 4));
    perform fetchq.doc_pick('rq_reject', 0, 1, '1h');
    perform fetchq.doc_complete('rq_reject', 'done');
    perform fetchq.doc_upsert('rq_reject', 'dead', 0, 9, '2020-01-01', jsonb_build_object('n', 5));
    perform fetchq.doc_pick('rq_reject', 0, 1, '1h');
    perform fetchq.doc_kill('rq_reject', 'dead');
end $$;
create view test.docs as
select subject, status, attempts, iterations, last_iteration = now() as last_now,
    case when next_iteration = now() + interval '1 hour' then 'end of lease' else (next_iteration at time zone 'UTC')::text end as next, payload
from fetchq_data.rq_reject__docs order by subject;
begin;
select test.fill();
select * from test.docs;
select test.delta('rq_reject');
select * from fetchq.doc_reject('rq_reject', 'active', 'no', '{}');
select * from test.docs where subject = 'active';
select test.delta('rq_reject');
-- A second call settles nothing.
select * from fetchq.doc_reject('rq_reject', 'active', 'no', '{}');
select test.delta('rq_reject');
commit;

-- With all arguments.
begin;
select test.fill();
select test.delta('rq_reject');
select * from fetchq.doc_reject('rq_reject', 'active', 'why not', '{"d": 1}', 'ref');
select * from test.docs where subject = 'active';
select test.delta('rq_reject');
commit;
select subject, message, details, ref_id from fetchq_data.rq_reject__logs order by id;

-- Nothing is logged for a document that is not active.
select fetchq.queue_truncate('rq_reject', true);
select * from fetchq.doc_reject('rq_reject', 'active', 'no', '{}');
select count(*) from fetchq_data.rq_reject__logs;

-- Killed after the last attempt; attempts and next_iteration stay.
select fetchq.queue_set_max_attempts('rq_reject', 3);
begin;
select fetchq.queue_truncate('rq_reject', true);
select fetchq.doc_push('rq_reject', 'bad');
do $$ begin for i in 1..4 loop
    perform fetchq.doc_pick('rq_reject', 0, 1, '0s');
    perform fetchq.doc_reject('rq_reject', 'bad', 'attempt ' || i, null);
end loop; end $$;
select subject, status, attempts, iterations, payload from test.docs;
select message, details, ref_id from fetchq_data.rq_reject__logs order by id;
select metric, current_value from fetchq.metric_get('rq_reject');
rollback;

-- A message can have 8192 bytes.
begin;
select test.fill();
select test.error($$select * from fetchq.doc_reject('rq_reject', 'active', repeat('é', 4097))$$);
select * from fetchq.doc_reject('rq_reject', 'active', repeat('é', 300), '{}');
select length(message) from fetchq_data.rq_reject__logs;
rollback;
begin;
select test.fill();
select * from fetchq.doc_reject('rq_reject', 'active', 'it''s "quoted" \ 𝄞', '{"it''s": "\"x\""}', 'r''ef');
select message, details, ref_id from fetchq_data.rq_reject__logs;
rollback;
select test.error($$select fetchq.doc_reject('rq_reject', 'active', null, '{}')$$);

-- Writing to the log alone.
begin;
select test.fill();
select * from fetchq.log_error('rq_reject', 'active', 'told', '{"d": 2}');
select * from fetchq.log_error('rq_reject', 'no such document', 'told', null, 'ref');
select subject, message, details, ref_id, created_at = now() as now from fetchq_data.rq_reject__logs order by id;
select test.delta('rq_reject') is not null as looked;
select * from fetchq.log_error('rq_reject', 'active', 'again', '{}');
select test.delta('rq_reject');
rollback;
select * from fetchq.log_error('rq_nope', 's', 'm', '{}');

-- Only an active document can be settled: otherwise the result is 0, with a warning.
begin;
select test.fill();
select test.delta('rq_reject') is not null as looked;
select * from fetchq.doc_reject('rq_reject', 'planned', 'no', '{}');
select * from fetchq.doc_reject('rq_reject', 'pending', 'no', '{}');
select * from fetchq.doc_reject('rq_reject', 'done', 'no', '{}');
select * from fetchq.doc_reject('rq_reject', 'dead', 'no', '{}');
select * from fetchq.doc_reject('rq_reject', 'missing', 'no', '{}');
select * from fetchq.doc_reject('rq_nope', 'active', 'no', '{}');
select test.delta('rq_reject');
select subject, status from test.docs;
commit;
set fetchq.strict = on;
select test.error($$select fetchq.doc_reject('rq_reject', 'planned', 'no', '{}')$$);
select test.error($$select fetchq.doc_reject('rq_reject', 'missing', 'no', '{}')$$);
select test.error($$select fetchq.doc_reject('rq_nope', 'active', 'no', '{}')$$);
set fetchq.strict = off;
select test.error($$select fetchq.doc_reject('rq_reject', repeat('x', 256), 'no', '{}')$$);

-- An expired lease is still valid until maintenance ends it.
select fetchq.queue_set_max_attempts('rq_reject', 5);
select fetchq.queue_truncate('rq_reject', true);
select fetchq.doc_push('rq_reject', 'late');
select subject from fetchq.doc_pick('rq_reject', 0, 1, '0s');
select * from fetchq.doc_reject('rq_reject', 'late', 'no', '{}');
select test.exact('rq_reject');
select fetchq.queue_truncate('rq_reject', true);
select fetchq.doc_push('rq_reject', 'late');
select subject from fetchq.doc_pick('rq_reject', 0, 1, '0s');
select * from fetchq.mnt_run('rq_reject', 10);
select * from fetchq.doc_reject('rq_reject', 'late', 'no', '{}');
select test.exact('rq_reject');
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_reject');
