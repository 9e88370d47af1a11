-- The triggers. The isolation tests check the notifications, because they can listen.
create table test.watched (id int, t text);
create trigger watch after insert or update or delete on test.watched for each row execute function fetchq.trigger_notify_as_json();
insert into test.watched values (1, 'one'), (2, 'it''s "two" 🙂');
update test.watched set t = 'changed';
delete from test.watched;

-- A message over 8000 bytes: the statement does not fail, in any of the three operations.
insert into test.watched values (3, repeat('x', 9000));
update test.watched set t = repeat('y', 9000);
update test.watched set t = repeat('é', 3990);
delete from test.watched;
insert into test.watched select i, repeat('z', 7700 + i) from generate_series(1, 300) i;
select count(*) from test.watched;
delete from test.watched;
drop table test.watched;

-- The registry: a large config does not prevent a client's UPDATE.
select was_created from fetchq.queue_create('rq_trig');
update fetchq.queues set is_active = false where name = 'rq_trig';
update fetchq.queues set config = jsonb_build_object('x', repeat('y', 20000)) where name = 'rq_trig';
update fetchq.queues set is_active = true where name = 'rq_trig';
select is_active, length(config ->> 'x') from fetchq.queues where name = 'rq_trig';

-- The triggers of the documents follow every change of a status; a table with them can be
-- truncated, dropped and dumped as any other table.
select fetchq.queue_enable_notify('rq_trig');
select pg_get_triggerdef(oid) from pg_trigger where tgrelid = 'fetchq_data.rq_trig__docs'::regclass and not tgisinternal order by tgname collate "C";
select fetchq.doc_push('rq_trig', repeat('🙂', 50));
select fetchq.doc_push('rq_trig', '');
select count(*) from fetchq.doc_pick('rq_trig', 0, 2, '5m');
update fetchq_data.rq_trig__docs set status = 77;
update fetchq_data.rq_trig__docs set status = 3;
select fetchq.queue_truncate('rq_trig');
select test.exact('rq_trig');
select was_dropped from fetchq.queue_drop('rq_trig');

-- Restoring the jobs: the dumped row for lgp replaces the new one.
begin;
insert into fetchq.jobs (id, task, queue, attempts, iterations, next_iteration, settings)
values (4711, 'lgp', '*', 3, 99, '2020-01-01', '{"delay": "9s"}');
select id, task, queue, attempts, iterations, settings from fetchq.jobs where queue = '*';
rollback;
select count(*) from fetchq.jobs where queue = '*';
