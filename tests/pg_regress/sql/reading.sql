-- Reading documents: doc_get, docs_list, doc_errors, and the trace with the history.
select was_created from fetchq.queue_create('rq_read');
set fetchq.worker = 'regress';
create function test.doc(subject text) returns table (doc text) language sql as $$
select jsonb_strip_nulls(to_jsonb(d) - 'created_at' - 'due_at' - 'picked_at' - 'settled_at' - 'lease_ends') || jsonb_build_object(
    'was_created', d.created_at <= now(), 'is_due', d.due_at <= now(), 'was_picked', d.picked_at <= now(), 'was_settled', d.settled_at <= now(),
    'is_leased', d.lease_ends > now())
from fetchq.doc_get('rq_read', subject) d $$;
select fetchq.doc_put('rq_read', s, '{"n": 1}', version => 2, priority => 3, ordering_key => 'k', max_attempts => 7)
from unnest('{pending,active,completed,killed,dropped,rejected,cancelled,popped}'::text[]) s;
select fetchq.doc_put('rq_read', 'planned', '{}', due_at => now() + interval '1 hour');
update fetchq_data.rq_read__docs set headers = '{"h": 1}', priority = case subject when 'pending' then 0 when 'popped' then 1 else 3 end;
select count(*) from fetchq.doc_pick('rq_read', 2, 6, '1h');
select fetchq.doc_complete('rq_read', 'completed', '{"n": 2}'), fetchq.doc_kill('rq_read', 'killed'), fetchq.doc_drop('rq_read', 'dropped'),
    fetchq.doc_reject('rq_read', 'rejected', 'disk full', '{"d": 1}', 'ref', delay => '1 hour');
update fetchq_data.rq_read__docs set progress = '{"done": 0.5}' where subject = 'active';
update fetchq_data.rq_read__docs set result = '{"r": 1}' where subject = 'completed';
select d.doc from unnest('{pending,planned,active,completed,killed,rejected,cancelled}'::text[]) with ordinality s (s, n), test.doc(s) d order by n;
-- There is none, or it was dropped.
select * from test.doc('dropped');
select * from test.doc('absent');

-- The history has the newest entry.
select from fetchq.queue_configure('rq_read', '{"history": {"completed": "1h", "killed": "1h", "dropped": "1h"}}');
select fetchq.doc_cancel('rq_read', 'pending');
select subject from fetchq.doc_pop('rq_read', 2, 1);
select fetchq.doc_complete('rq_read', 'active', '{"last": 1}');
select fetchq.doc_push('rq_read', 'active', 2, 9, now(), '{}');
select fetchq.doc_drop('rq_read', subject) from fetchq.doc_pick('rq_read', 2, 1, '1h');
select d.doc from unnest('{pending,popped,active}'::text[]) with ordinality s (s, n), test.doc(s) d order by n;
select outcome from fetchq.history where queue = 'rq_read' and subject = 'active' order by id;
select queue, type, split_part(info, ' at ', 1) as info, details ->> 'subject' as subject from fetchq.trace('active');
select queue, type, split_part(info, ' at ', 1) as info from fetchq.trace('active', 'desc');

-- Errors, the newest first.
select fetchq.log_error('rq_read', 'rejected', 'second', '{}'), fetchq.log_error('rq_read', 'rejected', 'third', null, 'r3');
select at <= now() as was, attempt, message, details, ref_id from fetchq.doc_errors('rq_read', 'rejected');
select message from fetchq.doc_errors('rq_read', 'rejected', 1);
select message from fetchq.doc_errors('rq_read', 'rejected', max_docs => 0);
select count(*) from fetchq.doc_errors('rq_read', 'rejected', 100000);
select * from fetchq.doc_errors('rq_read', 'absent');
select test.error($$select * from fetchq.doc_errors('rq_read', 'rejected', -1)$$);
select test.error($$select * from fetchq.doc_errors('rq_nope', 'rejected')$$);
select test.error($$select * from fetchq.doc_errors('rq_read', repeat('x', 300))$$);
select test.error($$select * from fetchq.doc_get('rq_nope', 'x')$$);
select test.error($$select * from fetchq.doc_get('rq_read', repeat('x', 300))$$);

-- A list, and its pages.
select subject, status from fetchq.docs_list('rq_read');
select fetchq.doc_push('rq_read', 'p-' || lpad(i::text, 3, '0'), i % 3, i % 5, now() + (i % 2) * interval '1 hour', jsonb_build_object('i', i % 10)) from generate_series(1, 100) i;
select count(*), min(subject), max(subject) from fetchq.docs_list('rq_read', '{"subject_like": "p-%"}');
with recursive pages as (
    select 1 as page, array(select subject from fetchq.docs_list('rq_read', '{"subject_like": "p-%"}', 30)) as subjects
    union all
    select page + 1, array(select subject from fetchq.docs_list('rq_read', '{"subject_like": "p-%"}', 30, p.subjects[30])) from pages p where p.subjects[30] is not null)
select page, cardinality(subjects), subjects[1], subjects[cardinality(subjects)] from pages;
select count(*), bool_and(status = 'planned') from fetchq.docs_list('rq_read', '{"status": "planned", "subject_like": "p-%"}', 1000);
select count(*), bool_and(status = 'pending') from fetchq.docs_list('rq_read', '{"status": "pending", "version": 1, "min_priority": 2, "payload": {"i": 4}}', 1000);
select subject, status from fetchq.docs_list('rq_read', '{"status": ["killed", "completed"]}');
select subject, last_error from fetchq.docs_list('rq_read', '{"error_like": "disk%"}');
select count(*) from fetchq.docs_list('rq_read', '{"older_than": "1 hour"}');
select count(*) from fetchq.docs_list('rq_read', max_docs => 0);
select count(*) from fetchq.docs_list('rq_read', '{}', 100000);
select test.error($$select * from fetchq.docs_list('rq_nope')$$);
select test.error($$select * from fetchq.docs_list('rq_read', '{"stauts": "killed"}')$$);
select test.error($$select * from fetchq.docs_list('rq_read', '[]')$$);
select test.error($$select * from fetchq.docs_list('rq_read', '{"older_than": "-1h"}')$$);
select test.error($$select * from fetchq.docs_list('rq_read', '{}', -1)$$);
-- Blocked documents of an ordered queue are in the list too.
begin;
select from fetchq.queue_configure('rq_read', '{"ordered": true}');
select fetchq.doc_put('rq_read', 'ordered-' || i, ordering_key => 'o') from generate_series(1, 3) i;
select subject, status from fetchq.docs_list('rq_read', '{"status": "pending", "ordering_key": "o"}');
rollback;

-- A list that would read too much is refused.
begin;
insert into fetchq_data.rq_read__docs (subject, status) select 'much-' || i, 3 from generate_series(1, 100050) i;
select test.error($$select * from fetchq.docs_list('rq_read', '{"status": "killed", "version": 5}')$$);
select count(*) from fetchq.docs_list('rq_read');
select count(*) from fetchq.docs_list('rq_read', '{"status": ["planned", "pending"]}', 1000);
select count(*) from fetchq.docs_list('rq_read', '{"subject_like": "p-%", "version": 7}');
select count(*) from fetchq.docs_list('rq_read', '{}', 100000);
rollback;

-- A reader may read, a producer may not; and in a read-only transaction.
create role rq_read_producer;
create role rq_read_reader;
select fetchq.queue_grant('rq_read', 'rq_read_producer', 'producer');
select fetchq.queue_grant('rq_read', 'rq_read_reader', 'reader');
grant usage on schema test to public;
grant execute on function test.error(text) to public;
begin read only;
set local role rq_read_reader;
select subject, is_from_history from fetchq.doc_get('rq_read', 'active');
select subject, worker from fetchq.doc_get('rq_read', 'killed');
select count(*) from fetchq.docs_list('rq_read', max_docs => 5);
select count(*) from fetchq.doc_errors('rq_read', 'rejected');
rollback;
set role rq_read_producer;
select test.error($$select * from fetchq.doc_get('rq_read', 'active')$$);
select test.error($$select * from fetchq.docs_list('rq_read')$$);
select test.error($$select * from fetchq.doc_errors('rq_read', 'rejected')$$);
reset role;
drop function test.doc(text);
select was_dropped from fetchq.queue_drop('rq_read');
drop owned by rq_read_producer, rq_read_reader;
drop role rq_read_producer, rq_read_reader;
