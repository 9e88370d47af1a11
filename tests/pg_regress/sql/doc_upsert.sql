-- Upserts.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_upsert');
select test.delta('rq_upsert');
create view test.doc as select subject, version, priority, status, attempts, iterations, next_iteration, payload
from fetchq_data.rq_upsert__docs;

-- A new document is pushed.
select * from fetchq.doc_upsert('rq_upsert', 's1', 2, 3, '2970-01-01', '{"n": 1}');
select * from test.doc;
select test.delta('rq_upsert');

-- An existing document changes priority, payload and time; the version stays.
select * from fetchq.doc_upsert('rq_upsert', 's1', 9, 4, '2970-02-01', '{"n": 2}');
select * from test.doc;
select test.delta('rq_upsert');

-- The time changes the status, in both directions.
select * from fetchq.doc_upsert('rq_upsert', 's1', 2, 4, '2020-01-01', '{"n": 3}');
select * from test.doc;
select test.delta('rq_upsert');
select * from fetchq.doc_upsert('rq_upsert', 's1', 2, 4, '2970-01-01', '{"n": 4}');
select * from test.doc;
select test.delta('rq_upsert');
select count(*) from fetchq.doc_pick('rq_upsert', 2, 1, '5m');
select * from fetchq.doc_upsert('rq_upsert', 's1', 2, 4, '2020-01-01', '{"n": 5}');
select subject, payload from fetchq.doc_pick('rq_upsert', 2, 1, '5m');
select test.delta('rq_upsert');

-- An active document does not change.
select * from fetchq.doc_upsert('rq_upsert', 's1', 2, 1, '2020-01-01', '{"n": 6}');
select subject, version, priority, status, attempts, payload from test.doc;
select test.delta('rq_upsert');

-- A completed or killed document gets the values and stays settled.
select fetchq.doc_complete('rq_upsert', 's1');
select test.delta('rq_upsert');
select * from fetchq.doc_upsert('rq_upsert', 's1', 2, 1, '2020-01-01', '{"n": 7}');
select * from test.doc;
select test.delta('rq_upsert');
select fetchq.doc_push('rq_upsert', 's2');
select subject from fetchq.doc_pick('rq_upsert');
select fetchq.doc_kill('rq_upsert', 's2');
select test.delta('rq_upsert');
select * from fetchq.doc_upsert('rq_upsert', 's2', 0, 1, '2970-01-01', '{"n": 8}');
select subject, priority, status, next_iteration, payload from test.doc where subject = 's2';
select test.delta('rq_upsert');

-- The attempts of a rejected document stay.
select fetchq.doc_push('rq_upsert', 's3');
select subject from fetchq.doc_pick('rq_upsert');
select fetchq.doc_reject('rq_upsert', 's3', 'no', '{}');
select * from fetchq.doc_upsert('rq_upsert', 's3', 0, 0, '2020-01-01', '{"n": 9}');
select subject, status, attempts, iterations, payload from test.doc where subject = 's3';

-- Twice in one transaction, and twice in one statement.
begin;
select * from fetchq.doc_upsert('rq_upsert', 's4', 0, 0, '2970-01-01', '{"n": 1}');
select * from fetchq.doc_upsert('rq_upsert', 's4', 0, 0, '2020-01-01', '{"n": 2}');
commit;
select u.* from generate_series(1, 3) i, fetchq.doc_upsert('rq_upsert', 's5', 0, i, '2020-01-01', '{}') u;
select subject, priority, status from test.doc where subject in ('s4', 's5') order by subject;

-- A document that is hidden for an upgrade does not change.
update fetchq_data.rq_upsert__docs set lock_upgrade = now() where subject = 's5';
select * from fetchq.doc_upsert('rq_upsert', 's5', 0, 9, '2970-01-01', '{}');
select subject, priority, status from test.doc where subject = 's5';

select * from fetchq.doc_upsert('rq_nope', 's1', 0, 0, now(), '{}');
select test.error($$select fetchq.doc_upsert('rq_upsert', repeat('x', 256), 0, 0, now(), '{}')$$);
select test.exact('rq_upsert');
drop view test.doc;
select was_dropped from fetchq.queue_drop('rq_upsert');
