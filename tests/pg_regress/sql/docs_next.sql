-- docs_next: settles a list, and leases the next documents.
select was_created from fetchq.queue_create('rq_dn', '{"lease": "7 minutes", "max_attempts": 3}');
select fetchq.doc_put('rq_dn', 'a' || i, '{}', due_at => timestamptz '2020-01-01' + i * interval '1 second') from generate_series(1, 6) i;
create table held (subject text primary key, lease bigint);
create function one(subject text, what jsonb) returns jsonb language sql as $$
    select jsonb_build_object('subject', h.subject, 'lease', h.lease) || what from held h where h.subject = $1
$$;
create function lease_of(text) returns bigint language sql as 'select lease from held where subject = $1';

-- The first call has nothing to settle.
insert into held select subject, lease from fetchq.docs_next('rq_dn', max_docs => 2) returning subject;
-- Each further one settles what the one before has leased.
with leased as (select * from fetchq.docs_next('rq_dn', jsonb_build_array(one('a1', '{"action": "complete"}'), one('a2', '{"action": "drop"}')), 2))
insert into held select subject, lease from leased returning subject;
select subject, status from fetchq_data.rq_dn__docs order by 1;
-- Each argument as in doc_lease.
begin;
select subject, version, attempts, max_attempts, lease_ends > now() + interval '50 minutes' as for_an_hour
from fetchq.docs_next('rq_dn', null, 1, '1 hour', 0, 'rq_dn_worker', 'return');
select worker, binding from fetchq.leases where queue = 'rq_dn' and worker = 'rq_dn_worker';
rollback;
select count(*) from fetchq.docs_next('rq_dn', '[]', 1, version => 7);
select subject, lease_ends between now() + interval '6 minutes' and now() + interval '7 minutes' as as_set, lease > lease_of('a3') as is_greater
from fetchq.docs_next('rq_dn', jsonb_build_array(one('a3', '{"action": "drop"}')), 0);
select subject from fetchq_data.rq_dn__docs where subject = 'a3';

-- A document that is given back and due is leased again by the same call, after those that are due
-- before it, with a new lease number and another attempt.
begin;
select subject, attempts, iterations, lease > lease_of('a4') as is_greater, last_error
from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "reject", "message": "again", "delay": "0"}')), 5);
rollback;
begin;
select subject, attempts, iterations, lease > lease_of('a4') as is_greater
from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "snooze", "due_at": "2019-01-01"}')), 1);
rollback;
begin;
select subject, attempts, iterations, payload from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "reschedule", "delay": "0", "payload": 7}')), 5);
rollback;
-- One that is due later is not.
begin;
select subject from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "reject", "message": "later", "delay": "1 s"}')), 5);
rollback;

-- What was not settled is an error, and nothing is done: most drivers show no warnings.
select fetchq.doc_cancel('rq_dn', 'a4');
select test.delta('rq_dn') is not null;
select regexp_replace(test.error(format($$select * from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "complete"}'))%s)$$, on_lost)), 'lease \d+', 'lease N')
from unnest(array['', $$, on_lost => 'error'$$, ', on_lost => null']) on_lost;
select test.error($$select * from fetchq.docs_next('rq_dn', '[{"subject": "a5", "action": "complete"}]')$$);
select test.delta('rq_dn'), test.exact('rq_dn');
-- One warning, and the next documents, because it was asked for.
begin;
select subject from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "complete"}'), jsonb '{"subject": "absent", "action": "drop"}', jsonb '{"subject": "a5", "action": "drop"}'), on_lost => 'warning');
rollback;
begin;
select subject from fetchq.docs_next('rq_dn', (select jsonb_agg(jsonb_build_object('subject', 'x' || i, 'action', 'drop')) from generate_series(11, 25) i), on_lost => 'warning');
rollback;
select test.delta('rq_dn'), test.exact('rq_dn');
-- Silence, because it was asked for.
begin;
select subject from fetchq.docs_next('rq_dn', jsonb_build_array(one('a4', '{"action": "complete"}')), on_lost => 'ignore');
rollback;

-- Bad arguments: nothing is settled and nothing is leased.
select test.error($$select * from fetchq.docs_next(null)$$);
select test.error($$select * from fetchq.docs_next('rq_nope')$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '{}')$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '[{"subject": "a5", "action": "sing"}]')$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '[]', -1)$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '[]', 1, '-1 s')$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '[]', worker => '')$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '[]', binding => 'forever')$$);
select test.error($$select * from fetchq.docs_next('rq_dn', '[]', on_lost => 'report')$$);
select test.delta('rq_dn'), test.exact('rq_dn');
-- NULL means the default.
begin;
select subject from fetchq.docs_next('rq_dn', null, null, null, null, null, null, null);
rollback;

-- Limits hold: a document that is settled makes room for the next one in the same call.
select was_created from fetchq.queue_create('rq_dn2', '{"max_active": 1}');
select fetchq.doc_put('rq_dn2', 'b' || i, '{}') from generate_series(1, 3) i;
truncate held;
insert into held select subject, lease from fetchq.docs_next('rq_dn2', max_docs => 5) returning subject;
select count(*) from fetchq.docs_next('rq_dn2', max_docs => 5);
with leased as (select * from fetchq.docs_next('rq_dn2', jsonb_build_array(one('b1', '{"action": "complete"}')), 5))
insert into held select subject, lease from leased returning subject;
-- So do paused queues.
select fetchq.queue_configure('rq_dn2', '{"paused": true}') ->> 'paused';
select count(*) from fetchq.docs_next('rq_dn2', jsonb_build_array(one('b2', '{"action": "complete"}')), 5);
select subject, status from fetchq_data.rq_dn2__docs order by 1;
select test.exact('rq_dn2');

-- In a transaction that keeps one snapshot, the documents that the call gives back are seen too.
select fetchq.queue_configure('rq_dn2', '{"paused": false, "max_active": null}') ->> 'paused';
truncate held;
insert into held select subject, lease from fetchq.docs_next('rq_dn2');
begin isolation level repeatable read;
select subject, attempts from fetchq.docs_next('rq_dn2', (select jsonb_agg(one(subject, '{"action": "reject", "message": "m", "delay": "0"}')) from held));
rollback;

select (fetchq.queue_drop('rq_dn')).was_dropped, (fetchq.queue_drop('rq_dn2')).was_dropped;
drop function one(text, jsonb);
drop function lease_of(text);
drop table held;
