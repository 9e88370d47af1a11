-- Pushing documents.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_push');
select test.delta('rq_push');

-- The short forms: version 0, priority 0, due now, an empty payload.
select * from fetchq.doc_push('rq_push', 's1');
select * from fetchq.doc_push('rq_push', 's2', '{"a": 1}');
select * from fetchq.doc_push('rq_push', 's3', '{"a": 2}', timestamptz '2020-01-01');
select * from fetchq.doc_push('rq_push', 's4', '{"a": 3}', timestamptz '2970-01-01');
select * from fetchq.doc_push('rq_push', 's5', 2, -7, '2020-01-01', '{"a": 4}');
select subject, version, priority, status, attempts, iterations, lock_upgrade, last_iteration, payload
from fetchq_data.rq_push__docs order by seq;
select subject, next_iteration, created_at <= now() as was_created from fetchq_data.rq_push__docs
where subject in ('s3', 's4', 's5') order by seq;
select test.delta('rq_push');

-- The same with only untyped literals, or text.
select * from fetchq.doc_push('rq_push', 'u1', '{"a": 5}', '2020-01-01');
select * from fetchq.doc_push('rq_push'::text, 'u2'::varchar, '{"a": 6}'::text, '2970-01-01'::text);
select subject, version, status, next_iteration, payload from fetchq_data.rq_push__docs where subject in ('u1', 'u2') order by seq;
select test.error($$select fetchq.doc_push('rq_push', 'u3', '{"a": 5}', 'whenever')$$);
select test.error($$select fetchq.doc_push('rq_push', 'u3', 'not json', '2020-01-01')$$);
delete from fetchq_data.rq_push__docs where subject in ('u1', 'u2');
select cnt from fetchq.metric_reset('rq_push');
select test.delta('rq_push') is not null as looked;

-- A document is due when its time is not later than now(), the start of the transaction.
begin;
select * from fetchq.doc_push('rq_push', 'now', '{}', now());
select * from fetchq.doc_push('rq_push', 'later', '{}', now() + interval '1 microsecond');
select subject, status, next_iteration - now() from fetchq_data.rq_push__docs where subject in ('now', 'later') order by seq;
rollback;
select * from fetchq.doc_push('rq_push', 'never', '{}', timestamptz 'infinity');
select * from fetchq.doc_push('rq_push', 'always', '{}', timestamptz '-infinity');
select * from fetchq.doc_push('rq_push', 'past', '{}', timestamptz '4000-01-01 BC');
select subject, status from fetchq_data.rq_push__docs where subject in ('never', 'always', 'past') order by seq;
select subject from fetchq.doc_pick('rq_push', 0, 2, '5m');
select test.delta('rq_push');

-- An existing subject does not change, whatever its status.
select * from fetchq.doc_push('rq_push', 's2', '{"other": true}');
select * from fetchq.doc_push('rq_push', 's4', 5, 5, '2020-01-01', '{"other": true}');
select * from fetchq.doc_push('rq_push', 'always');
select subject, version, priority, status, payload from fetchq_data.rq_push__docs where subject in ('s2', 's4', 'always') order by seq;
select test.delta('rq_push');

-- Subjects: any text of up to 50 characters (not bytes).
select * from fetchq.doc_push('rq_push', '');
select * from fetchq.doc_push('rq_push', repeat('é', 50));
select * from fetchq.doc_push('rq_push', 'it''s "quoted" \ 𝄞; --');
select * from fetchq.doc_push('rq_push', 'S1');
select test.error($$select fetchq.doc_push('rq_push', repeat('x', 256))$$);
select test.error($$select fetchq.doc_push('rq_push', repeat('é', 256), 0, 0, now(), '{}')$$);

-- Payloads: any JSON, of any size.
select * from fetchq.doc_push('rq_push', 'array', '[1, "two"]');
select * from fetchq.doc_push('rq_push', 'scalar', '7');
select * from fetchq.doc_push('rq_push', 'json null', 'null');
select * from fetchq.doc_push('rq_push', 'quotes', $j${"q": "it's \"so\" \\ '' 𝄞"}$j$);
select * from fetchq.doc_push('rq_push', 'big', jsonb_build_object('x', repeat('y', 1000000)));
select subject, payload from fetchq_data.rq_push__docs where subject in ('array', 'scalar', 'json null', 'quotes') order by seq;
select length(payload ->> 'x') from fetchq_data.rq_push__docs where subject = 'big';

-- The limits of version and priority.
select * from fetchq.doc_push('rq_push', 'low', -2147483648, -2147483648, '2020-01-01', '{}');
select * from fetchq.doc_push('rq_push', 'high', 2147483647, 2147483647, '2020-01-01', '{}');
select subject, version, priority from fetchq.doc_pick('rq_push', -2147483648, 1, '5m');
select subject, version, priority from fetchq.doc_pick('rq_push', 2147483647, 1, '5m');
select current_value from fetchq.metric_get('rq_push', 'v2147483647');
select current_value from fetchq.metric_get('rq_push', 'v-2147483648');

-- A missing queue.
select * from fetchq.doc_push('rq_nope', 's1');
select * from fetchq.doc_push('rq_nope', 's1', 0, 0, now(), '{}');
select test.exact('rq_push');

-- A document that plain SQL has written can be picked.
select * from fetchq.queue_truncate('rq_push');
insert into fetchq_data.rq_push__docs (subject, status, next_iteration) values ('raw', 1, '2020-01-01');
select fetchq.doc_push('rq_push', 'back', '{}', timestamptz '2970-01-01');
update fetchq_data.rq_push__docs set status = 1, next_iteration = '2020-01-02' where subject = 'back';
select subject, payload from fetchq.doc_pick('rq_push', 0, 5, '5m');
select was_dropped from fetchq.queue_drop('rq_push');
