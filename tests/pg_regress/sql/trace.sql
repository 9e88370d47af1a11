-- The traces of a subject in every queue.
select was_created from fetchq.queue_create('rq_trace_a');
select was_created from fetchq.queue_create('rq_trace_b');
select was_created from fetchq.queue_create('rq_trace_c');
insert into fetchq_data.rq_trace_b__docs (subject, status, attempts, iterations, created_at, payload) values
    ('s1', 1, 2, 3, '2020-01-01', '{"a": 1}'), ('other', 1, 0, 0, '2020-01-01', '{}');
insert into fetchq_data.rq_trace_b__logs (subject, message, created_at, details, ref_id) values
    ('s1', 'first', '2020-01-02', '{"d": 1}', 'r'), ('other', 'no', '2020-01-02', '{}', null), ('s1', 'third', '2020-01-04', null, null);
insert into fetchq_data.rq_trace_a__docs (subject, status, created_at) values ('s1', 3, '2020-01-03');
insert into fetchq_data.rq_trace_a__logs (subject, message, created_at) values ('s1', 'fourth', '2020-01-05');

-- Documents and errors of every queue, numbered from 1.
select array_agg(step order by step) as steps from fetchq.trace('s1');
select created_at, queue, type, info from fetchq.trace('s1') order by created_at;
select created_at, queue, type, info from fetchq.trace('s1', 'ASC') order by created_at;
select created_at, queue, type, info from fetchq.trace('s1', 'DESC') order by created_at;
select count(*) from fetchq.trace('s1', 'desc');
select queue, type, details ->> 'subject' as subject, details -> 'payload' as payload, details ->> 'message' as message, details -> 'details' as details
from fetchq.trace('s1') order by queue, type, message;
select * from fetchq.trace('absent');
select * from fetchq.trace('''; drop table fetchq.queues; --');
select test.error($$select fetchq.trace('s1', 'UP')$$);
select test.error($$select fetchq.trace(repeat('x', 256))$$);

-- The real history of a document.
select fetchq.doc_push('rq_trace_c', 's2', '{"n": 1}');
select subject from fetchq.doc_pick('rq_trace_c', 0, 1, '0s');
select fetchq.doc_reject('rq_trace_c', 's2', 'went wrong', '{"why": 1}');
select subject from fetchq.doc_pick('rq_trace_c', 0, 1, '0s');
select fetchq.doc_complete('rq_trace_c', 's2');
select step, queue, type, info from fetchq.trace('s2');
select queue, type, info from fetchq.trace('s2', 'DESC');
select was_dropped from fetchq.queue_drop('rq_trace_a');
select was_dropped from fetchq.queue_drop('rq_trace_b');
select was_dropped from fetchq.queue_drop('rq_trace_c');
