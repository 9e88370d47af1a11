-- Pausing, limits, ordering keys, and picking from several queues.
select was_created from fetchq.queue_create('flow');
update fetchq.jobs set next_iteration = '2970-01-01';
create function test.recount_flow() returns boolean language plpgsql as $$
begin
    update fetchq.jobs set next_iteration = '2020-01-01' where queue = 'flow' and task = 'cmp';
    return (select success from fetchq.mnt_job_run(1));
end $$;
select fetchq.doc_push('flow', 'd' || i) from generate_series(1, 9) i;

-- A paused queue: no function picks a document, everything else works.
select fetchq.queue_pause('flow');
select fetchq.queue_pause('flow');
select count(*) from fetchq.doc_pick('flow');
select count(*) from fetchq.doc_pick('flow', '5m'::text);
select count(*) from fetchq.doc_pick('flow', '5m'::interval);
select count(*) from fetchq.doc_pick('flow', 0, 5, '5m'::text);
select count(*) from fetchq.doc_pick('flow', 0, 5, '5m'::interval);
select count(*) from fetchq.doc_lease_any(array['flow'], 5);
call fetchq.queue_wait(array['flow'], '20 ms');
select fetchq.doc_push('flow', 'x'), fetchq.doc_upsert('flow', 'd1', 0, 0, now(), '{"a": 1}');
select fetchq.queue_resume('flow');
select fetchq.queue_resume('flow');
call fetchq.queue_wait(array['flow'], '20 ms');
select subject from fetchq.doc_pick('flow', 1);
-- A pause by a client's plain UPDATE has the same effect.
update fetchq.queues set is_active = false where name = 'flow';
select count(*) from fetchq.doc_pick('flow');
select fetchq.doc_complete('flow', subject) from fetchq_data.flow__docs where status = 2;
update fetchq.queues set is_active = true where name = 'flow';
-- In a transaction: other sessions see the pause when it is committed.
begin;
select fetchq.queue_pause('flow');
select count(*) from fetchq.doc_pick('flow');
rollback;
select count(*) from fetchq.doc_pick('flow', 1);
select fetchq.queue_truncate('flow', true);

-- A cap.
select fetchq.doc_push('flow', 'd' || i) from generate_series(1, 9) i;
select from fetchq.queue_configure('flow', '{"max_active": 3}');
select subject from fetchq.doc_pick('flow', 2);
select subject from fetchq.doc_pick('flow', 2);
select subject from fetchq.doc_pick('flow', 2);
call fetchq.queue_wait(array['flow'], '20 ms');
select slot, subject from fetchq.lease_slots order by 1;
-- Each way of settling frees the lease slot.
select fetchq.doc_complete('flow', 'd1');
select subject from fetchq.doc_pick('flow', 2);
select fetchq.doc_kill('flow', 'd2');
select subject from fetchq.doc_pick('flow', 2);
select fetchq.doc_drop('flow', 'd3');
select subject from fetchq.doc_pick('flow', 2);
select fetchq.doc_reschedule('flow', 'd4', now() + interval '1 day');
select subject from fetchq.doc_pick('flow', 2);
select fetchq.doc_reject('flow', 'd5', 'why', '{}');
select subject from fetchq.doc_pick('flow', 2);
update fetchq_data.flow__docs set next_iteration = now() - interval '1 second' where status = 2;
select * from fetchq.mnt_run('flow', 10);
select count(*) from fetchq.doc_pick('flow', 9);
select slot, subject from fetchq.lease_slots order by 1;
-- Picks that are rolled back use no lease slot.
select fetchq.doc_complete_many('flow', array_agg(subject::text)) from fetchq_data.flow__docs where status = 2;
begin; select count(*) from fetchq.doc_pick('flow', 2); rollback;
begin;
savepoint s;
select count(*) from fetchq.doc_pick('flow', 2);
rollback to s;
select count(*) from fetchq.doc_pick('flow', 1);
commit;
select count(*) from fetchq.doc_pick('flow', 9);
-- A console's UPDATE also counts.
select fetchq.queue_truncate('flow', true);
select slot, subject from fetchq.lease_slots order by 1;
select fetchq.doc_push('flow', 'e' || i) from generate_series(1, 9) i;
update fetchq_data.flow__docs set status = 2 where subject in ('e1', 'e2', 'e3', 'e4');
select count(*) from fetchq.doc_pick('flow', 9);
update fetchq_data.flow__docs set status = 3 where subject = 'e1';
select count(*) from fetchq.doc_pick('flow', 9);
delete from fetchq_data.flow__docs where subject = 'e2';
select count(*) from fetchq.doc_pick('flow', 9);
truncate fetchq_data.flow__docs;
select slot, subject from fetchq.lease_slots order by 1;
-- The cap is lowered below the number of active documents: picks wait until enough are settled.
select fetchq.doc_push('flow', 'f' || i) from generate_series(1, 9) i;
select count(*) from fetchq.doc_pick('flow', 3);
select from fetchq.queue_configure('flow', '{"max_active": 1}');
select count(*) from fetchq.doc_pick('flow', 3);
select fetchq.doc_complete('flow', 'f1');
select count(*) from fetchq.doc_pick('flow', 3);
select fetchq.doc_complete('flow', 'f2');
select count(*) from fetchq.doc_pick('flow', 3);
select fetchq.doc_complete('flow', 'f3');
select count(*) from fetchq.doc_pick('flow', 3);
select slot, subject from fetchq.lease_slots order by 1;
select from fetchq.queue_configure('flow', '{"max_active": 2}');
select count(*) from fetchq.doc_pick('flow', 3);
select from fetchq.queue_configure('flow', '{"max_active": null}');
select count(*) from fetchq.doc_pick('flow', 2), fetchq.lease_slots;
select count(*) from pg_trigger where tgrelid = 'fetchq_data.flow__docs'::regclass and tgname like 'fetchq_cap%';
-- The recount repairs lease slots where triggers did not run.
select from fetchq.queue_configure('flow', '{"max_active": 3}');
set session_replication_role = replica;
update fetchq_data.flow__docs set status = 3 where status = 2;
reset session_replication_role;
select count(*) from fetchq.doc_pick('flow', 3);
select test.recount_flow();
select count(*) from fetchq.doc_pick('flow', 3);
select from fetchq.queue_configure('flow', '{"max_active": null}');
select fetchq.queue_truncate('flow', true);

-- A rate.
select fetchq.doc_push('flow', 'g' || i) from generate_series(1, 9) i;
select from fetchq.queue_configure('flow', '{"rate": {"picks": 3, "per": "1 hour"}}');
select count(*) from fetchq.doc_pick('flow', 2);
begin; select count(*) from fetchq.doc_pick('flow', 2); rollback;
select count(*) from fetchq.doc_pick('flow', 2);
call fetchq.queue_wait(array['flow'], '20 ms');
-- A new rate includes the last picks.
select from fetchq.queue_configure('flow', '{"rate": {"picks": 5, "per": "1 hour"}}');
select count(*) from fetchq.doc_pick('flow', 9);
select from fetchq.queue_configure('flow', '{"rate": {"picks": 2, "per": "1 day"}}');
select count(*), min(free_at) > now() + interval '23 hours' from fetchq.rate_permits;
select from fetchq.queue_configure('flow', '{"rate": null}');
select count(*) from fetchq.rate_permits;
select count(*) from fetchq.doc_pick('flow', 9);
select fetchq.queue_truncate('flow', true);

-- The order of a key.
insert into fetchq_data.flow__docs (subject, status, ordering_key) values ('k1', 1, 'k'), ('k2', 1, 'k'), ('other', 1, 'o'), ('k3', 1, 'k'), ('free', 1, null);
select from fetchq.queue_configure('flow', '{"ordered": true}');
select from fetchq.queue_configure('flow', '{"ordered": true}');
select subject, lock_upgrade from fetchq_data.flow__docs order by seq;
select key, array_to_string(unblocked, ' ') as subject from fetchq.ordering_keys order by 1;
insert into fetchq_data.flow__docs (subject, status, ordering_key) values ('k4', 1, 'k'), ('new', 1, 'n'), ('new2', 1, 'n'), ('later', 0, 'k');
insert into fetchq_data.flow__docs (subject, status, ordering_key) values ('k4', 1, 'z') on conflict do nothing;
select subject from fetchq.doc_pick('flow', 9);
-- A retry keeps its place in the order; a rescheduled document goes to the end.
select fetchq.doc_reject('flow', 'k1', 'why', '{}');
select subject from fetchq.doc_pick('flow', 9);
update fetchq_data.flow__docs set next_iteration = now() where subject = 'k1';
select subject from fetchq.doc_pick('flow', 9);
update fetchq_data.flow__docs set next_iteration = now() - interval '1 second' where subject = 'k1';
select * from fetchq.mnt_run('flow', 10);
select subject from fetchq.doc_pick('flow', 9);
select fetchq.doc_reschedule('flow', 'k1', now());
select subject from fetchq.doc_pick('flow', 9);
select fetchq.doc_reschedule('flow', 'k2', now() + interval '1 day');
select subject from fetchq.doc_pick('flow', 9);
-- The payload of a blocked document.
select * from fetchq.doc_upsert('flow', 'k4', 0, 0, now(), '{"new": true}');
select fetchq.doc_complete('flow', 'k3', '{}');
select subject, payload from fetchq.doc_pick('flow', 9);
select fetchq.doc_drop('flow', subject) from fetchq_data.flow__docs where status = 2 and ordering_key = 'k';
select subject, payload from fetchq.doc_pick('flow', 9);
select fetchq.doc_kill('flow', subject) from fetchq_data.flow__docs where status = 2 and ordering_key = 'k';
select subject, payload from fetchq.doc_pick('flow', 9);
select key, array_to_string(unblocked, ' ') as subject from fetchq.ordering_keys order by 1;
-- A document becomes the head because the head is deleted.
delete from fetchq_data.flow__docs where subject = 'new';
select subject from fetchq.doc_pick('flow', 9);
update fetchq_data.flow__docs set status = 1 where subject = 'k2';
update fetchq_data.flow__docs set ordering_key = 'n', status = 1 where subject = 'later';
select subject, lock_upgrade from fetchq_data.flow__docs where status = 1 order by seq;
-- The recount repairs the ordering keys where triggers did not run.
set session_replication_role = replica;
insert into fetchq_data.flow__docs (subject, status, ordering_key) values ('r1', 1, 'r'), ('r2', 1, 'r'), ('r3', 1, 'r');
update fetchq_data.flow__docs set status = 3 where subject = 'new2';
reset session_replication_role;
select test.recount_flow();
select subject, lock_upgrade from fetchq_data.flow__docs where status = 1 order by seq;
select key, array_to_string(unblocked, ' ') as subject from fetchq.ordering_keys order by 1;
-- Without order, all documents can be picked.
select from fetchq.queue_configure('flow', '{"ordered": false}');
select subject, lock_upgrade from fetchq_data.flow__docs where status = 1 order by seq;
select count(*) from fetchq.ordering_keys;
select count(*) from pg_trigger where tgrelid = 'fetchq_data.flow__docs'::regclass and tgname like 'fetchq_order%';
-- The order is set again, while several documents of a key are active.
select fetchq.queue_truncate('flow', true);
insert into fetchq_data.flow__docs (subject, status, ordering_key) select 's' || i, 1, 's' from generate_series(1, 5) i;
select count(*) from fetchq.doc_pick('flow', 2);
select from fetchq.queue_configure('flow', '{"ordered": true}');
select key, unblocked as subjects from fetchq.ordering_keys order by 1;
select fetchq.doc_complete('flow', 's1');
select count(*) from fetchq.doc_pick('flow', 2);
select fetchq.doc_complete('flow', 's2');
select subject from fetchq.doc_pick('flow', 2);
truncate fetchq_data.flow__docs;
select count(*) from fetchq.ordering_keys;
select from fetchq.queue_configure('flow', '{"ordered": false}');

-- A statement writes rows in any order; the order of a key depends on time and number.
select was_created from fetchq.queue_create('line');
update fetchq.jobs set next_iteration = '2970-01-01' where queue = 'line';
select from fetchq.queue_configure('line', '{"ordered": true}');
create function test.run_line() returns text[] language plpgsql as $$
declare ran text[] := '{}'; doc text;
begin
    loop
        select p.subject into doc from fetchq.doc_pick('line', 9) p;
        exit when doc is null;
        ran := ran || doc;
        perform fetchq.doc_complete('line', doc);
    end loop;
    perform fetchq.queue_truncate('line', true);
    return ran;
end $$;
-- Documents become due.
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration)
select 'n' || n, 0, 'k', '2020-01-01'::timestamptz + n * interval '1 minute' from unnest('{3,1,4,2,5}'::int[]) n;
select * from fetchq.mnt_run('line', 10);
select key, array_to_string(unblocked, ' ') as subject from fetchq.ordering_keys;
select subject, lock_upgrade from fetchq_data.line__docs order by 1;
select test.run_line();
-- Documents are put.
select * from fetchq.doc_put_many('line', '[{"subject": "z", "ordering_key": "k"}, {"subject": "a", "ordering_key": "k"}, {"subject": "m", "ordering_key": "k"},
    {"subject": "first", "ordering_key": "k", "due_at": "2020-01-01"}]');
select test.run_line();
-- Documents are retried, killed, and redriven.
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration)
select s, 0, 'k', '2970-01-01' from unnest('{z1,m2,a3}'::text[]) s;
select fetchq.docs_retry('line', '{}');
select subject from fetchq.doc_pick('line', 9);
select fetchq.docs_kill('line', '{"status": ["pending", "active"]}');
select fetchq.queue_redrive('line');
select test.run_line();
-- Pushes in one transaction; one of them is rolled back.
begin;
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration) values ('late', 1, 'k', '2020-01-03');
savepoint s;
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration) values ('undone', 1, 'k', '2020-01-01');
rollback to s;
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration) values ('early', 1, 'k', '2020-01-02');
commit;
select test.run_line();
-- The head of a key stays the head when others arrive, also while it is snoozed.
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration) values ('open', 1, 'k', '2020-01-02');
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration) values ('before', 1, 'k', '2020-01-01');
select subject from fetchq.doc_pick('line', 9);
select fetchq.doc_snooze('line', 'open', now() + interval '1 hour');
update fetchq_data.line__docs set next_iteration = '2020-01-03' where subject = 'open';
insert into fetchq_data.line__docs (subject, status, ordering_key, next_iteration) values ('planned', 0, 'k', '2020-01-01');
select * from fetchq.mnt_run('line', 10);
select test.run_line();
-- A blocked document that is made active by hand runs beside the head. When its lease expires, it waits.
insert into fetchq_data.line__docs (subject, status, ordering_key) values ('o1', 1, 'k'), ('o2', 1, 'k'), ('o3', 1, 'k');
update fetchq_data.line__docs set status = 2, attempts = 1, next_iteration = now() where subject = 'o2';
select subject, status, lock_upgrade from fetchq_data.line__docs order by seq;
select key, unblocked as subjects from fetchq.ordering_keys;
update fetchq_data.line__docs set next_iteration = now() - interval '1 second' where subject = 'o2';
select * from fetchq.mnt_run('line', 10);
select subject from fetchq.doc_pick('line', 9) order by 1;
select fetchq.doc_complete('line', 'o1');
select test.run_line();
-- The triggers use no operator of the session's search_path.
select from fetchq.queue_configure('line', '{"max_active": 2}');
insert into fetchq_data.line__docs (subject, status, ordering_key) values ('p1', 1, 'k'), ('p2', 1, 'k'), ('p3', 1, 'l');
select count(*) from fetchq.doc_pick('line', 9);
create schema trap;
create function trap.trap(int, int) returns boolean language plpgsql as $$ begin raise exception 'trapped'; end $$;
create function trap.trap(bigint, bigint) returns boolean language plpgsql as $$ begin raise exception 'trapped'; end $$;
create operator trap.= (function = trap.trap, leftarg = int, rightarg = int);
create operator trap.< (function = trap.trap, leftarg = bigint, rightarg = bigint);
create operator trap.>= (function = trap.trap, leftarg = bigint, rightarg = bigint);
set search_path = trap, pg_catalog;
truncate fetchq_data.line__docs;
reset search_path;
drop schema trap cascade;
select slot, subject from fetchq.lease_slots order by 1;
select count(*) from fetchq.ordering_keys;
select was_dropped from fetchq.queue_drop('line');
drop function test.run_line();

-- Several queues.
select was_created from fetchq.queue_create('flow2');
select fetchq.doc_push('flow', 'a' || i), fetchq.doc_push('flow2', 'b' || i, '{"n": 1}') from generate_series(1, 30) i;
select queue, count(*) from fetchq.doc_lease_any(array['flow', 'flow2'], 20) group by 1 order by 1;
select queue, count(*) from fetchq.doc_lease_any(array['flow', 'flow2'], 12, weights => array[1, 2]) group by 1 order by 1;
select queue, count(*) from fetchq.doc_lease_any(array['flow', 'flow2'], 100) group by 1 order by 1;
select fetchq.doc_push('flow', 'last'), fetchq.doc_push('flow2', 'last', '{"n": 1}');
select fetchq.queue_pause('flow');
select queue, subject, payload, version, priority, attempts, iterations, lease is not null as leased from fetchq.doc_lease_any(array['FLOW', 'flow2'], 9, '1 hour', 0, array[5, 1]);
select fetchq.queue_resume('flow');
select queue, count(distinct lease) from fetchq.doc_lease_any(array['flow', 'flow2'], 9) group by 1;
select count(*) from fetchq.doc_lease_any(array['flow', 'flow2'], 0);

-- Errors.
select fetchq.queue_pause(null);
select fetchq.queue_pause('nobody');
select fetchq.queue_resume('nobody');
select from fetchq.queue_configure('nobody', '{"max_active": 1}');
select from fetchq.queue_configure('flow', '{"max_active": 0}');
select from fetchq.queue_configure('flow', '{"max_active": -1}');
select from fetchq.queue_configure('flow', '{"max_active": 100001}');
select from fetchq.queue_configure('nobody', '{"rate": {"picks": 1}}');
select from fetchq.queue_configure('flow', '{"rate": {"picks": 0}}');
select from fetchq.queue_configure('flow', '{"rate": {"picks": 1, "per": "0"}}');
select from fetchq.queue_configure('flow', '{"rate": {"picks": 1, "per": "-1 s"}}');
select from fetchq.queue_configure('flow', '{"rate": {"picks": 1, "per": 60}}');
select from fetchq.queue_configure('nobody', '{"ordered": true}');
select from fetchq.queue_configure('flow', '{"ordered": "yes"}');
select * from fetchq.doc_lease_any(null);
select * from fetchq.doc_lease_any('{}');
select * from fetchq.doc_lease_any(array['flow', null]);
select * from fetchq.doc_lease_any(array['flow', 'Flow']);
select * from fetchq.doc_lease_any(array['flow', 'nobody']);
select * from fetchq.doc_lease_any(array['flow', 'flow2'], -1);
select * from fetchq.doc_lease_any(array['flow', 'flow2'], 1, '-1 s');
select * from fetchq.doc_lease_any(array['flow', 'flow2'], weights => array[1]);
select * from fetchq.doc_lease_any(array['flow', 'flow2'], weights => array[1, 0]);
select * from fetchq.doc_lease_any(array['flow', 'flow2'], weights => array[1, null]);
begin isolation level repeatable read;
select from fetchq.queue_configure('flow', '{"max_active": 1}');
rollback;
create table stray (n int);
create trigger t after insert on stray for each row execute function fetchq.trigger_docs_cap();
insert into stray values (1);
drop table stray;
select from fetchq.queue_configure('flow', '{"max_active": 5, "rate": {"picks": 5}, "ordered": true}');
select test.exact('flow') from fetchq.queue_truncate('flow', true);
select was_dropped from fetchq.queue_drop('flow');
select was_dropped from fetchq.queue_drop('flow2');
drop function test.recount_flow();
select (select count(*) from fetchq.lease_slots) + (select count(*) from fetchq.rate_permits) + (select count(*) from fetchq.ordering_keys) as left;
