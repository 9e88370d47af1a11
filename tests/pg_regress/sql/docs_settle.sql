-- docs_settle: each document of a list in its own way.
select was_created from fetchq.queue_create('rq_ds', '{"lease": "7 minutes", "max_attempts": 5}');
select fetchq.doc_put('rq_ds', 's' || i, '{"n": 1}') from generate_series(1, 30) i;
create table held (subject text primary key, lease bigint);
insert into held select subject, lease from fetchq.doc_lease('rq_ds', 16);
insert into held select subject, lease from fetchq.doc_pick('rq_ds', 0, 4, '7 minutes');
-- A settlement of a document with its lease.
create function one(subject text, what jsonb) returns jsonb language sql as $$
    select jsonb_build_object('subject', $1) || coalesce((select jsonb_build_object('lease', h.lease) from held h where h.subject = $1), '{}') || what
$$;
create view documents as
    select subject, status, attempts, iterations, payload, result, last_error,
        case when next_iteration > '2900-01-01' then 'never' when next_iteration <= now() then 'now' else date_trunc('minute', next_iteration - now() + interval '1 second')::text end as due
    from fetchq_data.rq_ds__docs order by length(subject), subject;
select test.delta('rq_ds') is not null;

-- All actions, in the order of the list. A lease may be a number or its text; a null is as if the
-- key was left out.
select * from fetchq.docs_settle('rq_ds', jsonb_build_array(
    one('s9', '{"action": "reject", "message": "bad luck", "details": {"why": [1, null]}, "ref_id": "r1", "delay": "5 minutes"}'),
    one('s1', '{"action": "complete"}'),
    one('s2', '{"action": "complete", "payload": {"n": 2}, "result": {"sum": 7}}'),
    one('s3', '{"action": "complete", "payload": null, "result": null, "message": null, "delay": null}'),
    one('s4', '{"action": "drop"}'),
    one('s5', '{"action": "kill"}'),
    one('s6', '{"action": "kill", "payload": [], "message": "no use", "details": 7, "ref_id": "r2"}'),
    one('s7', '{"action": "snooze", "delay": "1 hour"}'),
    one('s8', '{"action": "snooze"}'),
    one('s10', '{"action": "reschedule", "delay": "2 hours", "payload": "x"}'),
    one('s11', '{"action": "reschedule", "due_at": "2020-01-01"}'),
    one('s12', '{"action": "reject", "message": ""}'),
    (select jsonb_build_object('subject', subject, 'lease', lease::text, 'action', 'reschedule', 'delay', '0') from held where subject = 's13')
));
select * from documents where subject not in ('s20', 's30') and length(subject) < 3 or subject ~ '^s1[0-3]$';
select subject, message, details, ref_id, attempt from fetchq_data.rq_ds__logs order by subject;
select test.delta('rq_ds'), test.exact('rq_ds');

-- What is not settled does not keep the others from it. A wrong lease, a lease that was lost, a
-- document that is not there, one that is not leased, one that was settled before.
select fetchq.doc_cancel('rq_ds', 's14');
select * from fetchq.docs_settle('rq_ds', jsonb_build_array(
    jsonb '{"subject": "s15", "lease": 7, "action": "complete"}',
    one('s16', '{"action": "complete"}'),
    one('s14', '{"action": "complete"}'),
    one('s1', '{"action": "complete"}'),
    jsonb '{"subject": "absent", "lease": 7, "action": "drop"}',
    jsonb '{"subject": "absent too", "action": "snooze"}',
    jsonb '{"subject": "s29", "action": "complete"}',
    one('s4', '{"action": "reject", "message": "m"}'),
    jsonb '{"subject": "s17", "action": "kill", "message": "any lease"}',
    jsonb '{"subject": "s28", "action": "kill", "message": "no lease"}'
), on_lost => 'report');
select subject, message from fetchq_data.rq_ds__logs where message like '%lease';
select test.delta('rq_ds'), test.exact('rq_ds');

-- Or the first one of the list in the order of subjects is the error of its single call, and nothing
-- is settled.
create table before as select * from fetchq_data.rq_ds__docs;
select regexp_replace(test.error(format($$select * from fetchq.docs_settle('rq_ds', %L, 'error')$$, jsonb_build_array(one('s18', '{"action": "complete"}'), one('s19', settlement)))), '7 of', 'N of')
from unnest('{"{\"action\": \"complete\", \"lease\": 7}", "{\"action\": \"kill\", \"message\": \"m\", \"lease\": 7}"}'::jsonb[]) settlement;
select test.error(format($$select * from fetchq.docs_settle('rq_ds', %L, on_lost => 'error')$$, jsonb_build_array(one('s18', '{"action": "drop"}'), settlement)))
from unnest('{"{\"subject\": \"s29\", \"action\": \"drop\"}", "{\"subject\": \"zz\", \"action\": \"reject\", \"message\": \"m\"}"}'::jsonb[]) settlement;
table before except table fetchq_data.rq_ds__docs;
select test.delta('rq_ds');
-- With all leases it settles all.
select * from fetchq.docs_settle('rq_ds', jsonb_build_array(one('s19', '{"action": "drop"}'), one('s18', '{"action": "drop"}')), 'error');

-- No settlements, and NULL for what has a default.
select * from fetchq.docs_settle('rq_ds', '[]');
select * from fetchq.docs_settle('rq_ds', '[]', null);
select test.error($$select * from fetchq.docs_settle('rq_ds', null)$$);
select test.error($$select * from fetchq.docs_settle('rq_nope', '[]')$$);
select test.error($$select * from fetchq.docs_settle('rq_ds', '[]', 'warning')$$);

-- Bad input: the position, and what is wrong. Nothing is settled, although s20 comes first.
create table bad (n int generated always as identity, settlements jsonb);
insert into bad (settlements) select jsonb_build_array(one('s20', '{"action": "drop"}'), b) from unnest(array[
    '1', '"s20"', 'true', 'null', '[]', '[{"subject": "s1", "action": "drop"}]',
    '{}', '{"action": "drop"}', '{"subject": null, "action": "drop"}', '{"subject": 7, "action": "drop"}', '{"subject": ["s1"], "action": "drop"}',
    '{"subject": "s1"}', '{"subject": "s1", "action": null}', '{"subject": "s1", "action": 1}', '{"subject": "s1", "action": "Drop"}', '{"subject": "s1", "action": ""}',
    '{"subject": "s1", "action": "drop", "at": "2020-01-01"}', '{"subject": "s1", "action": "drop", "Lease": null}', '{"subject": "s1", "action": "drop", "": 1}',
    '{"subject": "s1", "action": "drop", "lease": "x"}', '{"subject": "s1", "action": "drop", "lease": 1.5}', '{"subject": "s1", "action": "drop", "lease": ""}',
    '{"subject": "s1", "action": "drop", "lease": 9223372036854775808}', '{"subject": "s1", "action": "drop", "lease": true}', '{"subject": "s1", "action": "drop", "lease": [7]}',
    '{"subject": "s1", "action": "drop", "payload": {}}', '{"subject": "s1", "action": "complete", "delay": "1 s"}', '{"subject": "s1", "action": "complete", "message": "m"}',
    '{"subject": "s1", "action": "kill", "delay": "1 s"}', '{"subject": "s1", "action": "kill", "result": 1}', '{"subject": "s1", "action": "snooze", "payload": {}}',
    '{"subject": "s1", "action": "reschedule", "result": {}, "delay": "0"}', '{"subject": "s1", "action": "reject", "message": "m", "payload": {}}',
    '{"subject": "s1", "action": "reschedule"}', '{"subject": "s1", "action": "reschedule", "delay": null, "due_at": null}',
    '{"subject": "s1", "action": "snooze", "delay": "1 s", "due_at": "2030-01-01"}',
    '{"subject": "s1", "action": "snooze", "delay": 5}', '{"subject": "s1", "action": "snooze", "delay": "soon"}', '{"subject": "s1", "action": "snooze", "delay": "-1 s"}',
    '{"subject": "s1", "action": "snooze", "delay": "100000000000000 years"}', '{"subject": "s1", "action": "snooze", "delay": "170000000 years"}', '{"subject": "s1", "action": "snooze", "delay": ""}',
    '{"subject": "s1", "action": "snooze", "due_at": 7}', '{"subject": "s1", "action": "snooze", "due_at": "whenever"}',
    '{"subject": "s1", "action": "snooze", "due_at": "2030-02-30"}', '{"subject": "s1", "action": "snooze", "due_at": "2030-01-01 Mars/Base"}',
    '{"subject": "s20", "action": "snooze"}'
]::jsonb[]) b;
insert into bad (settlements) values ('{}'), ('{"subject": "s1", "action": "drop"}'), ('7'), ('null'), ('"[]"');
insert into bad (settlements) select jsonb_build_array(one('s20', '{"action": "drop"}'), jsonb_build_object('subject', repeat('é', 256), 'action', 'drop'));
select n, regexp_replace(test.error(format('select * from fetchq.docs_settle(''rq_ds'', %L)', settlements)), ' \| Nothing was settled. The actions.*', '') from bad order by n;
select test.error($$select * from fetchq.docs_settle('rq_ds', '[{}]')$$);
select test.error($$select * from fetchq.docs_settle('rq_ds', '{}')$$);
-- PostgreSQL 17 and newer can read it, and it is a bad delay for all.
select test.error($$select * from fetchq.docs_settle('rq_ds', '[{"subject": "s1", "action": "snooze", "delay": "infinity"}]')$$) like '22023 settlement 1 is not valid: %';
-- An error of the server does not remain in the session after it was replaced.
select outcome from fetchq.docs_settle('rq_ds', jsonb_build_array(one('s20', '{"action": "snooze"}')));
select test.delta('rq_ds'), test.exact('rq_ds');

-- A report of a failure does not fail, whatever it says. PostgreSQL refuses what no jsonb can have.
begin;
select test.error($$select * from fetchq.docs_settle('rq_ds', jsonb_build_array('{"subject": "s1", "action": "reject", "message": "\u0000"}'::jsonb))$$);
select test.error($$select * from fetchq.docs_settle('rq_ds', jsonb_build_array('{"subject": "s1", "action": "reject", "message": "\ud800"}'::jsonb))$$);
truncate fetchq_data.rq_ds__logs;
select count(*) from fetchq.doc_put_many('rq_ds', (select jsonb_agg(jsonb_build_object('subject', 'r' || i, 'priority', 9)) from generate_series(1, 9) i));
select array_agg(subject order by subject) from fetchq.doc_pick('rq_ds', 0, 9, '1h');
select subject, outcome from fetchq.docs_settle('rq_ds', jsonb_build_array(
    jsonb_build_object('subject', 'r1', 'action', 'reject', 'message', repeat('𝄞', 5000)),
    jsonb '{"subject": "r2", "action": "reject"}', jsonb '{"subject": "r3", "action": "reject", "message": null, "details": [1]}',
    jsonb '{"subject": "r4", "action": "reject", "message": {"code": 7}}', jsonb '{"subject": "r5", "action": "reject", "message": 7, "ref_id": 8}',
    jsonb '{"subject": "r6", "action": "kill", "details": {}}', jsonb '{"subject": "r7", "action": "kill", "ref_id": "r"}',
    jsonb '{"subject": "r8", "action": "kill"}', jsonb '{"subject": "r9", "action": "kill", "message": true}'));
select subject, left(message, 20) as message, octet_length(message) as bytes, details, ref_id from fetchq_data.rq_ds__logs order by subject;
select subject, left(last_error, 20) as last_error, length(last_error) from fetchq_data.rq_ds__docs where subject like 'r%' order by subject;
rollback;

-- Large values, and long lists.
insert into held select subject, lease from fetchq.doc_lease('rq_ds', 1) on conflict (subject) do update set lease = excluded.lease returning subject;
select outcome from fetchq.docs_settle('rq_ds', jsonb_build_array(one('s11', jsonb_build_object('action', 'kill', 'payload', repeat('x', 1000000), 'message', repeat('é', 4096), 'details', repeat('y', 1000000)))));
select length(payload #>> '{}'), length(last_error) from fetchq_data.rq_ds__docs where subject = 's11';
select length(message), length(details #>> '{}') from fetchq_data.rq_ds__logs where subject = 's11';
select outcome, count(*) from fetchq.docs_settle('rq_ds', (select jsonb_agg(jsonb_build_object('subject', 'x' || i, 'lease', i, 'action', 'drop')) from generate_series(1, 100) i)) group by 1;
select was_created from fetchq.queue_create('rq_ds2');
select count(*) from fetchq.doc_put_many('rq_ds2', (select jsonb_agg(jsonb_build_object('subject', 'd' || i)) from generate_series(1, 20000) i));
create table many as select subject, lease from fetchq.doc_lease('rq_ds2', 20000);
select test.delta('rq_ds2') is not null;
select outcome, count(*) from fetchq.docs_settle('rq_ds2', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', case when right(subject, 1) < '5' then 'complete' else 'drop' end)) from many)) group by 1;
select test.delta('rq_ds2'), test.exact('rq_ds2');

-- One row of the counter log for each kind of event, and not for each document.
select count(*) from fetchq.doc_put_many('rq_ds2', (select jsonb_agg(jsonb_build_object('subject', 'e' || i)) from generate_series(1, 12) i));
truncate many;
insert into many select subject, lease from fetchq.doc_lease('rq_ds2', 12);
select fetchq.metric_log_pack() is not null;
begin;
select outcome, count(*) from fetchq.docs_settle('rq_ds2', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease) || (array['{"action": "complete"}', '{"action": "complete", "result": 1}', '{"action": "reject", "message": "m"}', '{"action": "snooze"}']::jsonb[])[1 + n % 4]) from (select *, row_number() over (order by subject) as n from many) m)) group by 1;
select l.event, sum(coalesce(l.n, 1)) as n from fetchq.counter_log l
where l.queue_id = (select id from fetchq.queues where name = 'rq_ds2') group by 1 order by 1;
rollback;
select test.delta('rq_ds2'), test.exact('rq_ds2');

drop view documents;
select (fetchq.queue_drop('rq_ds')).was_dropped, (fetchq.queue_drop('rq_ds2')).was_dropped;
drop table held, before, bad, many;
drop function one(text, jsonb);
