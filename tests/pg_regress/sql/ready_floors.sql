-- The ready floors. Their contents depend on shared_preload_libraries, so this test checks only
-- results that hold with and without it: every document is found, in order.
select was_created from fetchq.queue_create('rq_floor');
create function test.pick(n int) returns setof text language plpgsql as $$
begin
    for i in 1..n loop
        return query select subject::text from fetchq.doc_pick('rq_floor');
    end loop;
end $$;

-- Enough picks to advance the floor several times.
select count(fetchq.doc_push('rq_floor', 's' || lpad(i::text, 3, '0'))) from generate_series(1, 200) i;
select count(*), min(p), max(p) from test.pick(150) p;

-- Plain SQL below the floor: an insert, an update, a copy.
insert into fetchq_data.rq_floor__docs (subject, status, next_iteration) values ('raw', 1, '2001-01-01');
update fetchq_data.rq_floor__docs set status = 1, attempts = 0, next_iteration = '2000-01-01' where subject = 's005';
copy fetchq_data.rq_floor__docs (subject, status, next_iteration) from stdin;
copied	1	2002-01-01
\.
select * from test.pick(4);
-- A higher priority, a lower one, another version.
select fetchq.doc_push('rq_floor', 'low', 0, -5, now(), '{}'), fetchq.doc_push('rq_floor', 'high', 0, 5, now(), '{}'), fetchq.doc_push('rq_floor', 'other', 3, 0, now(), '{}');
select * from test.pick(2);
select count(*), max(p) from test.pick(60) p;
select subject from fetchq.doc_pick('rq_floor', 3, 1, '5m');
-- Rejected documents, and documents rescheduled into the past.
select fetchq.doc_reschedule('rq_floor', 's010', '1999-01-01');
select * from test.pick(2);
-- A claim is rolled back after other picks have advanced the floor.
select count(fetchq.doc_push('rq_floor', 'r' || lpad(i::text, 3, '0'))) from generate_series(1, 100) i;
begin;
select * from test.pick(1);
savepoint s;
select count(*), max(p) from test.pick(70) p;
rollback to s;
select * from test.pick(1);
rollback;
select * from test.pick(1);
-- Triggers are disabled and enabled, as pg_restore --disable-triggers does.
alter table fetchq_data.rq_floor__docs disable trigger all;
insert into fetchq_data.rq_floor__docs (subject, status, next_iteration) values ('unseen', 1, '2003-01-01');
alter table fetchq_data.rq_floor__docs enable always trigger fetchq_ready;
select * from test.pick(1);
-- Truncated in a transaction that is rolled back.
begin;
truncate fetchq_data.rq_floor__docs;
select * from test.pick(1);
rollback;
select count(*), max(p) from test.pick(200) p;
-- Values that a rewrite of the table has changed.
select count(fetchq.doc_push('rq_floor', 'w' || i, 0, 0, now(), '{}')) from generate_series(1, 40) i;
alter table fetchq_data.rq_floor__docs alter next_iteration type timestamptz using next_iteration - interval '10 years';
select count(*) from test.pick(200) p;
-- More priorities than the shared memory can store.
select count(fetchq.doc_push('rq_floor', 'p' || i, 0, i, now(), '{}')) from generate_series(-20, 20) i;
select array_agg(p order by ordinality) from test.pick(50) with ordinality p (p);
-- Indexes that are newer than a chain of heap-only updates.
select count(*) from test.pick(100) p;
vacuum fetchq_data.rq_floor__docs;
select fetchq.queue_drop_indexes('rq_floor');
insert into fetchq_data.rq_floor__docs (subject, status, priority, next_iteration) values ('moved', 1, -9, '2005-01-01');
update fetchq_data.rq_floor__docs set priority = 10 where subject = 'moved';
insert into fetchq_data.rq_floor__docs (subject, status, priority, next_iteration)
    select l || i, 1, p, '2005-01-01' from (values ('t', 5), ('u', 0)) v (l, p), generate_series(1, 3) i;
select fetchq.queue_create_indexes('rq_floor');
select fetchq.doc_push('rq_floor', 'later', '{}', '2005-01-02');
select array_agg(p order by ordinality) from test.pick(10) with ordinality p (p);
-- A column of another type: entries cannot be noted, so no floor is used.
alter table fetchq_data.rq_floor__docs alter status type smallint;
insert into fetchq_data.rq_floor__docs (subject, status, next_iteration) values ('small', 1, '2004-01-01');
-- The context has one line more from PostgreSQL 14 on.
\set SHOW_CONTEXT never
select * from test.pick(1);
\set SHOW_CONTEXT errors
alter table fetchq_data.rq_floor__docs alter status type int;
-- A column default that writes to the same table.
create function test.nested() returns bigint language sql as $$
    insert into fetchq_data.rq_floor__docs (subject, status, next_iteration, iterations) values ('nested', 1, '2003-01-01', 7);
    select 7::bigint;
$$;
select fetchq.doc_push('rq_floor', 'plain', '{}', '2003-06-01');
select * from test.pick(2);
alter table fetchq_data.rq_floor__docs alter iterations set default test.nested();
select fetchq.doc_push('rq_floor', 'outer', '{}', '2003-06-01');
alter table fetchq_data.rq_floor__docs alter iterations set default 0;
select * from test.pick(2);
drop function test.nested();
-- A child table.
create table test.child () inherits (fetchq_data.rq_floor__docs);
insert into test.child (subject, status, next_iteration, seq) values ('child', 1, '2002-01-01', 1);
select * from test.pick(1);
drop table test.child;
-- Leases and planned documents.
select count(fetchq.doc_push('rq_floor', 'plan' || i, '{}', now() + interval '1 hour')) from generate_series(1, 5) i;
select * from fetchq.mnt_run('rq_floor', 1000);
update fetchq_data.rq_floor__docs set next_iteration = now() - interval '1 hour' where subject = 'plan3';
select * from fetchq.mnt_run('rq_floor', 1000);
select * from test.pick(1);
select floor_misses from fetchq.ready_stats();
select test.error($$select fetchq.ready_floors('rq_nope')$$);
select test.error($$select fetchq.ready_floors(null)$$);
drop function test.pick(int);
select was_dropped from fetchq.queue_drop('rq_floor');
