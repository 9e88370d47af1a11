-- A number of documents of an ordering key can be active at a time (max_active_per_key).
select was_created from fetchq.queue_create('flow', '{"max_active_per_key": 2}');
update fetchq.jobs set next_iteration = '2970-01-01';
create function test.recount_flow() returns boolean language plpgsql as $$
begin
    update fetchq.jobs set next_iteration = '2020-01-01' where queue = 'flow' and task = 'cmp';
    return (select success from fetchq.mnt_job_run(1));
end $$;
create function test.lease() returns text language sql as
$$ select string_agg(subject, ' ' order by subject) from fetchq.doc_pick('flow', 0, 100, '1 hour') $$;
-- The documents of each key in the order in which they became ready: active with a star, blocked in
-- brackets, planned with a question mark.
create view test.keys as
select d.ordering_key as key, string_agg(case
        when d.status = 2 then d.subject || '*'
        when d.status = 0 then d.subject || '?'
        when d.lock_upgrade = 'infinity' then '(' || d.subject || ')'
        else d.subject end, ' ' order by d.status = 0, d.next_iteration, d.seq) as documents,
    (select string_agg(s, ' ' order by s) from unnest(k.unblocked) s) as places
from fetchq_data.flow__docs d
left join fetchq.ordering_keys k on k.queue_id = (select id from fetchq.queues where name = 'flow') and k.key = d.ordering_key
where d.status in (0, 1, 2)
group by d.ordering_key, k.unblocked;
create procedure test.put(subjects text) language plpgsql as $$
declare s text;
begin
    foreach s in array string_to_array(subjects, ' ') loop
        perform fetchq.doc_put('flow', s, '{}', ordering_key => nullif(left(s, 1), '-'));
        commit;
    end loop;
end $$;

call test.put('a1 a2 a3 a4 b1 -1 -2 -3');
select key, documents, places from test.keys where key is not null order by 1;
select ready, retrying, blocked, active from fetchq.queue_stats('flow');
select test.lease();
select test.lease();
select ready, retrying, blocked, active from fetchq.queue_stats('flow');
call test.put('a5');
-- Each end of a document lets the next one run.
select fetchq.doc_complete('flow', 'a2');
select test.lease();
select fetchq.doc_kill('flow', 'a1');
select test.lease();
select fetchq.doc_drop('flow', 'a3');
select test.lease();
select fetchq.doc_reschedule('flow', 'a4', now() + interval '1 day');
call test.put('a6 a7 a8 a9');
select test.lease();
delete from fetchq_data.flow__docs where subject = 'a5';
update fetchq_data.flow__docs set ordering_key = null where subject = 'a6';
select * from test.keys where key = 'a';
select test.lease();
select subject from fetchq.doc_pop('flow', 9);
select fetchq.doc_complete('flow', 'a7');
select subject from fetchq.doc_pop('flow', 9);
select fetchq.queue_truncate('flow', true);
select count(*) from fetchq.ordering_keys;

-- A document that waits for its retry gives up its place, and joins the others when it is due.
call test.put('a1 a2 a3 a4 a5');
select test.lease();
select fetchq.doc_reject('flow', 'a1', 'why', '{}', delay => '1 hour');
select fetchq.doc_snooze('flow', 'a2', delay => '1 hour');
select * from test.keys;
select planned, ready, retrying, blocked, active, failed from fetchq.queue_stats('flow');
select test.lease();
update fetchq_data.flow__docs set next_iteration = '2020-01-01' where subject in ('a1', 'a2');
select * from fetchq.mnt_run('flow', 10);
select * from test.keys;
select fetchq.doc_complete('flow', 'a3');
select test.lease();
-- Without a delay it goes behind those that became ready before.
select fetchq.doc_reject('flow', 'a1', 'why', '{}', delay => '0 s');
select * from test.keys;
select test.lease();
-- So does one whose lease has expired.
update fetchq_data.flow__docs set next_iteration = now() - interval '1 second' where status = 2;
select * from fetchq.mnt_run('flow', 10);
select key, documents from test.keys;
-- A document without a key is retried as in other queues.
call test.put('-1');
select test.lease() is not null;
select fetchq.doc_reject('flow', '-1', 'why', '{}', delay => '1 hour');
select subject, status, next_iteration > now() as later from fetchq_data.flow__docs where ordering_key is null;
-- At its last attempt it is killed.
update fetchq_data.flow__docs set max_attempts = 1 where status = 2;
select fetchq.doc_reject('flow', min(subject), 'why', '{}', delay => '1 hour') from fetchq_data.flow__docs where status = 2;
select key, regexp_replace(documents, '[0-9]', '', 'g') as documents, cardinality(string_to_array(places, ' ')) as places from test.keys where key = 'a';
select test.exact('flow');
select fetchq.queue_truncate('flow', true);

-- Settlements of many documents of several keys.
call test.put('a1 b1 a2 b2 a3 b3 a4 b4');
select test.lease();
select subject, outcome from fetchq.docs_settle('flow', '[
    {"subject": "b1", "action": "complete"}, {"subject": "a1", "action": "reject", "message": "why", "delay": "1 h"},
    {"subject": "a2", "action": "drop"}, {"subject": "b2", "action": "snooze", "delay": "1 h"}]');
select * from test.keys order by 1;
select test.lease();
select * from fetchq.doc_complete_many('flow', array['b3', 'a3']);
select * from fetchq.doc_reschedule_many('flow', array['b4', 'a4'], now() + interval '1 h');
select * from test.keys order by 1;
select fetchq.docs_retry('flow', '{}');
select * from test.keys order by 1;
select fetchq.docs_kill('flow', '{"status": ["pending"]}');
select count(*) from fetchq.ordering_keys;
select test.exact('flow');
select fetchq.queue_truncate('flow', true);

-- A statement writes rows in any order; the order of a key depends on time and number.
insert into fetchq_data.flow__docs (subject, status, ordering_key, next_iteration)
select 'n' || n, 1, 'n', '2020-01-01'::timestamptz + n * interval '1 minute' from unnest('{5,3,1,4,2}'::int[]) n;
select * from test.keys;
insert into fetchq_data.flow__docs (subject, status, ordering_key, next_iteration)
select 'p' || n, 0, 'n', '2019-01-01'::timestamptz + n * interval '1 minute' from unnest('{5,3,1,4,2}'::int[]) n;
delete from fetchq_data.flow__docs where subject in ('n1', 'n2', 'n3', 'n4');
select * from fetchq.mnt_run('flow', 10);
select * from test.keys;
-- Pushes in one transaction; one of them is rolled back.
begin;
insert into fetchq_data.flow__docs (subject, status, ordering_key, next_iteration) values ('q3', 1, 'q', '2020-01-03');
savepoint s;
insert into fetchq_data.flow__docs (subject, status, ordering_key, next_iteration) values ('q0', 1, 'q', '2020-01-01'), ('q9', 1, 'q', '2020-01-01');
rollback to s;
insert into fetchq_data.flow__docs (subject, status, ordering_key, next_iteration) values ('q4', 1, 'q', '2020-01-04'), ('q1', 1, 'q', '2020-01-01'), ('q2', 1, 'q', '2020-01-02');
commit;
select * from test.keys order by 1;
select fetchq.queue_truncate('flow', true);

-- The number is raised and lowered.
call test.put('a1 a2 a3 a4 a5 a6 b1');
select test.lease();
select fetchq.queue_configure('flow', '{"max_active_per_key": 4}') -> 'max_active_per_key' as n;
select * from test.keys order by 1;
select test.lease();
select from fetchq.queue_configure('flow', '{"max_active_per_key": 1}');
select * from test.keys order by 1;
select fetchq.doc_complete('flow', subject) from unnest(array['a1', 'a2', 'a3']) subject;
select test.lease();
select fetchq.doc_complete('flow', 'a4');
select test.lease();
-- It is set again to what it is.
select from fetchq.queue_configure('flow', '{"max_active_per_key": 1}');
-- With one place, a retry still gives it up.
select fetchq.doc_reject('flow', 'a5', 'why', '{}', delay => '1 hour');
select test.lease();
select fetchq.doc_complete('flow', 'a6');
-- From an ordered queue, whose head waits for a retry, and back.
select from fetchq.queue_configure('flow', '{"max_active_per_key": null, "ordered": true}');
call test.put('c1 c2 c3 c4');
select test.lease();
select fetchq.doc_reject('flow', 'c1', 'why', '{}', delay => '1 hour');
select * from test.keys order by 1;
select from fetchq.queue_configure('flow', '{"max_active_per_key": 2, "ordered": false}');
select * from test.keys order by 1;
select test.exact('flow');
select test.lease();
select from fetchq.queue_configure('flow', '{"max_active_per_key": 1, "ordered": true}');
select * from test.keys order by 1;
select tgname from pg_trigger where tgrelid = 'fetchq_data.flow__docs'::regclass and tgname like 'fetchq_order%' order by 1;
-- Without a limit, all documents can be picked.
select from fetchq.queue_configure('flow', '{"max_active_per_key": 3, "ordered": null}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": null}');
select test.lease();
select count(*) from fetchq.ordering_keys;
select count(*) from pg_trigger where tgrelid = 'fetchq_data.flow__docs'::regclass and tgname like 'fetchq_order%';
select to_regclass('fetchq_data.flow__docs_blocked_idx');
select test.exact('flow');
-- It is set while more documents of a key are active.
select from fetchq.queue_configure('flow', '{"max_active_per_key": 1}');
call test.put('c5');
select * from test.keys order by 1;
select fetchq.doc_complete('flow', subject) from unnest(array['c2', 'c3']) subject;
select test.lease();
select fetchq.doc_complete('flow', 'c4');
select test.lease();
select fetchq.queue_truncate('flow', true);

-- A document that plain SQL makes active runs beside the others, and its lease expires.
select from fetchq.queue_configure('flow', '{"max_active_per_key": 2}');
call test.put('a1 a2 a3 a4');
update fetchq_data.flow__docs set status = 2, attempts = 1, next_iteration = now() - interval '1 second' where subject = 'a4';
select * from test.keys;
select fetchq.doc_complete('flow', subject) from fetchq.doc_pick('flow', 0, 1, '1 hour');
select * from test.keys;
select * from fetchq.mnt_run('flow', 10);
select * from test.keys;
-- The recount repairs the places where triggers did not run: a document with a place is gone, another
-- one has none, a key has none, and the number in the registry is another.
set session_replication_role = replica;
insert into fetchq_data.flow__docs (subject, status, ordering_key) select 'r' || i, 1, 'r' from generate_series(1, 4) i;
delete from fetchq_data.flow__docs where subject = 'a2';
reset session_replication_role;
select test.recount_flow();
select * from test.keys order by 1;
-- Blocked documents were given a key that has no row.
set session_replication_role = replica;
update fetchq_data.flow__docs set ordering_key = 's' where subject in ('r3', 'r4');
reset session_replication_role;
select test.recount_flow();
select * from test.keys order by 1;
update fetchq.queues set max_active_per_key = 3 where name = 'flow';
select test.recount_flow();
select * from test.keys order by 1;
update fetchq.queues set max_active_per_key = 1 where name = 'flow';
select test.recount_flow();
select * from test.keys order by 1;
set session_replication_role = replica;
update fetchq_data.flow__docs set status = 3 where ordering_key = 'a';
reset session_replication_role;
select test.recount_flow();
select key from fetchq.ordering_keys;
drop trigger fetchq_order_return on fetchq_data.flow__docs;
select test.recount_flow();
select tgname from pg_trigger where tgrelid = 'fetchq_data.flow__docs'::regclass and tgname like 'fetchq_order%' order by 1;
drop index fetchq_data.flow__docs_blocked_idx;
select test.recount_flow();
select * from test.keys order by 1;

-- With a cap of the queue.
select from fetchq.queue_configure('flow', '{"max_active": 3, "max_active_per_key": 2}');
call test.put('a1 a2 a3 b1 b2 b3');
select cardinality(string_to_array(test.lease(), ' '));
select max(n) from (select count(*) as n from fetchq_data.flow__docs where status = 2 group by ordering_key) k;
select from fetchq.queue_configure('flow', '{"max_active": null}');

-- The settings, and those of new queues.
select fetchq.queue_settings('flow') -> 'max_active_per_key' as n;
select from fetchq.queue_configure('flow', '{"max_active_per_key": 100}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": 0}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": -1}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": 101}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": "x"}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": 1.5}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": true}');
select from fetchq.queue_configure('flow', '{"max_active_per_key": {}}');
select from fetchq.queue_configure('flow', '{"ordered": true, "max_attempts": 77}');
select from fetchq.queue_configure('flow', '{"ordered": true, "max_active_per_key": 2}');
select s -> 'max_active_per_key' as n, s -> 'ordered' as ordered, s -> 'max_attempts' as attempts from fetchq.queue_settings('flow') s;
select was_created from fetchq.queue_create('other', '{"ordered": true, "max_active_per_key": 2}');
set fetchq.queue_defaults = '{"max_active_per_key": 101}';
select was_created from fetchq.queue_create('other');
set fetchq.queue_defaults = '{"max_active_per_key": 7}';
select was_created from fetchq.queue_create('other');
select fetchq.queue_settings('other') -> 'max_active_per_key' as n;
select was_created from fetchq.queue_create('third', '{"ordered": true}');
select was_created from fetchq.queue_create('third', '{"ordered": true, "max_active_per_key": null}');
select was_created from fetchq.queue_create('other', '{"max_active_per_key": 8}');
reset fetchq.queue_defaults;
begin isolation level repeatable read;
select from fetchq.queue_configure('flow', '{"max_active_per_key": 3}');
rollback;
drop view test.keys;
select was_dropped from unnest(array['flow', 'other', 'third']) q, fetchq.queue_drop(q);
drop function test.recount_flow(), test.lease();
drop procedure test.put(text);
