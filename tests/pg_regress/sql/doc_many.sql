-- Many documents in one call.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_many');
create view test.many as select subject, version, priority, status, payload from fetchq_data.rq_many__docs order by seq;

-- A JSON array, in which each document has its own values; an existing subject does not change.
select * from fetchq.doc_put_many('rq_many', '[
    {"subject": "a"},
    {"subject": "b", "priority": 3, "payload": {"x": 1}},
    {"subject": "a", "priority": 9},
    {"subject": "c", "version": 2, "due_at": "2030-01-01"}]');
select * from fetchq.doc_put_many('rq_many', '[{"subject": "c"}, {"subject": "d", "payload": null}]');
select * from fetchq.doc_put_many('rq_many', '[]');
select action from fetchq.doc_put_many('rq_many', '[{"subject": "e", "payload": {"n": 1}}, {"subject": "f", "payload": null}]');
select * from test.many;

-- An invalid element rejects the whole list, and the error names its position.
select test.error($$select fetchq.doc_put_many('rq_many', '{}')$$);
select test.error($$select fetchq.doc_put_many('rq_many', '[{"subject": "x"}, 1]')$$);
select test.error($$select fetchq.doc_put_many('rq_many', '[{"subject": "x"}, {"subject": []}]')$$);
select test.error($$select fetchq.doc_put_many('rq_many', '[{"subject": "x"}, {"subject": true}]')$$);
select test.error($$select fetchq.doc_put_many('rq_many', '[{"subject": "x", "prio": 1}]')$$);
select test.error($$select fetchq.doc_put_many('rq_many', '[{"subject": "x", "version": "one"}]')$$);
select test.error($$select fetchq.doc_put_many('rq_many', jsonb_build_array(jsonb_build_object('subject', repeat('x', 256))))$$);
select test.error($$select fetchq.doc_complete_many('rq_many', array['x', null])$$);
select test.error($$select fetchq.doc_complete_many('rq_many', array['x', repeat('x', 256)])$$);
select test.error($$select fetchq.doc_complete_many('rq_many', array['x', 'y'], array['{}']::jsonb[])$$);
select test.error($$select fetchq.doc_complete_many('rq_many', array['x'], array[array['{}']]::jsonb[])$$);
select test.error($$select fetchq.doc_append_many('rq_many', array[array['{}']]::jsonb[])$$);
select count(*) from test.many where subject = 'x';
select test.error($$select fetchq.doc_put_many('rq_nope', '[{"subject": "x"}]')$$);

-- Generated subjects, in the order of the payloads; picked in that order.
create table test.appended as
    select subject, n from fetchq.doc_append_many('rq_many', array['{"n": 1}', '{"n": 2}', '{"n": 3}']::jsonb[], 7) with ordinality a (subject, n);
select count(distinct subject), bool_and(subject ~ '^[0-9a-v]{13}$') as are_short from test.appended;
select a.n, p.payload from fetchq.doc_pick('rq_many', 7, 10, '5m') with ordinality p join test.appended a using (subject) order by p.ordinality;
select count(*) from fetchq.doc_append_many('rq_many', array[]::jsonb[]);
select count(*) from fetchq.doc_append_many('rq_nope', array['{}']::jsonb[]);

-- Replace: planned and pending documents change, active ones do not, completed ones stay completed.
select subject from fetchq.doc_pick('rq_many', 0, 1, '5m');
select subject, settled from fetchq.doc_drop_many('rq_many', array['b']);
select subject from fetchq.doc_pick('rq_many', 0, 2, '5m');
select subject, settled from fetchq.doc_complete_many('rq_many', array['d']);
select * from fetchq.doc_put_many('rq_many', '[
    {"subject": "a", "payload": {"not": "taken"}, "mode": "once"},
    {"subject": "new"},
    {"subject": "c", "version": 2, "priority": 4, "payload": {"moved": true}},
    {"subject": "d", "payload": {"stays": "completed"}, "mode": "replace,once"},
    {"subject": "new", "priority": 8, "due_at": "2030-01-01"}]', 'replace');
select * from test.many where subject in ('a', 'c', 'd', 'new') order by subject;
select test.error($$select * from fetchq.doc_put_many('rq_many', '[{"subjet": "x"}]', 'replace')$$);
select test.error($$select * from fetchq.doc_put_many('rq_nope', '[{"subject": "x"}]', 'replace')$$);
select * from fetchq.doc_put_many('rq_many', '[]', 'replace');

-- Settling lists: the result has the order of the list; a warning reports documents not active.
select subject from fetchq.doc_pick('rq_many', 0, 10, '5m');
select * from fetchq.doc_complete_many('rq_many', array['f', 'nope', 'e', 'f'], array[null, '{}', '{"done": true}', '{}']::jsonb[]);
select * from fetchq.doc_reschedule_many('rq_many', array['a'], '2030-01-01', array['{"again": true}']::jsonb[]);
select * from fetchq.doc_reschedule_many('rq_many', array['a'], now());
select * from test.many where subject in ('a', 'e', 'f');
select * from fetchq.doc_drop_many('rq_many', array[]::text[]);
begin;
set local fetchq.strict = on;
select test.error($$select fetchq.doc_drop_many('rq_many', array['e'])$$);
rollback;
select test.error($$select fetchq.doc_complete_many('rq_many', array['e'], array['{}', '{}']::jsonb[])$$);
select test.exact('rq_many');

-- Hostile text is data.
select action from fetchq.doc_put_many('rq_many', jsonb_build_array(jsonb_build_object('subject', E'\'; drop table x; --', 'payload', '{"a": "''; --"}'::jsonb), jsonb_build_object('subject', E'q"\\')));
select subject from test.many where subject ~ '[;"]' order by subject;
select test.exact('rq_many');
drop view test.many;
drop table test.appended;
select was_dropped from fetchq.queue_drop('rq_many');
