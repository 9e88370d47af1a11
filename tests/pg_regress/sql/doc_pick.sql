-- Leasing documents.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_pick');

-- The order: priority, then time, then attempts, then insertion.
create function test.fill() returns void language plpgsql as $$
begin
    truncate fetchq_data.rq_pick__docs;
    insert into fetchq_data.rq_pick__docs (subject, priority, status, attempts, next_iteration) values
        ('inserted last of equals', 0, 1, 1, '2020-01-03'),
        ('late', 0, 1, 0, '2020-01-04'),
        ('urgent, late', 5, 1, 0, '2020-01-09'),
        ('tried', 0, 1, 2, '2020-01-02'),
        ('not tried', 0, 1, 0, '2020-01-02'),
        ('early', 0, 1, 3, '2020-01-01'),
        ('can wait', -1, 1, 0, '2019-01-01'),
        ('a last of equals', 0, 1, 1, '2020-01-03'),
        ('urgent, early', 5, 1, 4, '2020-01-08');
end $$;
select test.fill();
select subject, priority, attempts from fetchq.doc_pick('rq_pick', 0, 20, '5m');

-- Picking one document at a time gives the same order as a batch, and so do small batches.
select test.fill();
create temp table got (n serial, subject text);
do $$ begin for i in 1..12 loop
    insert into got (subject) select p.subject from fetchq.doc_pick('rq_pick', 0, 1, '5m') p;
end loop; end $$;
select subject from got order by n;
select test.fill();
truncate got restart identity;
do $$ begin for i in 1..5 loop
    insert into got (subject) select p.subject from fetchq.doc_pick('rq_pick', 0, 2, '5m') p;
end loop; end $$;
select subject from got order by n;
drop table got;
drop function test.fill();

-- The result is the document as it is leased.
truncate fetchq_data.rq_pick__docs;
select fetchq.doc_push('rq_pick', 's1', 1, 3, '2020-01-01', '{"a": 1}');
begin;
select subject, payload, version, priority, attempts, iterations, created_at < now() as created_before, last_iteration,
    next_iteration = now() + interval '10 minutes' as leased_for_10m, lock_upgrade
from fetchq.doc_pick('rq_pick', 1, 1, '10m');
select subject, status, attempts, next_iteration = now() + interval '10 minutes' as leased_for_10m from fetchq_data.rq_pick__docs;
rollback;
begin;
select subject, payload, version, priority, attempts, iterations, created_at < now() as created_before, last_iteration,
    next_iteration = now() + interval '10 minutes' as leased_for_10m, lock_upgrade
from fetchq.doc_pick('rq_pick', 1, 5, interval '10m');
select subject, status, attempts, next_iteration = now() + interval '10 minutes' as leased_for_10m from fetchq_data.rq_pick__docs;
rollback;
select subject, status, attempts, next_iteration from fetchq_data.rq_pick__docs;

-- Only the given version; the short forms mean version 0, one document, 5 minutes.
select count(*) from fetchq.doc_pick('rq_pick', 0, 5, '5m');
select count(*) from fetchq.doc_pick('rq_pick');
select fetchq.doc_push('rq_pick', 'a' || i, '{}', '2020-01-01') from generate_series(1, 6) i;
begin;
select subject, next_iteration = now() + interval '5m' as for_5m from fetchq.doc_pick('rq_pick');
select subject, next_iteration = now() + interval '5m' as for_5m from fetchq.doc_pick('rq_pick', 2);
select subject, next_iteration = now() + interval '1h' as for_1h from fetchq.doc_pick('rq_pick', '1h');
select subject, next_iteration = now() + interval '1h' as for_1h from fetchq.doc_pick('rq_pick', interval '1h');
select subject, next_iteration = now() + interval '2h' as for_2h from fetchq.doc_pick('rq_pick', 0, 5, interval '2h');
select count(*) from fetchq.doc_pick('rq_pick', 0, 5, '5m');
rollback;

-- Limits.
select count(*) from fetchq.doc_pick('rq_pick', 0, 0, '5m');
select test.error($$select fetchq.doc_pick('rq_pick', 0, -1, '5m')$$);
select test.error($$select fetchq.doc_pick('rq_pick', -1)$$);
begin;
select count(*) from fetchq.doc_pick('rq_pick', 0, 2147483647, '5m');
rollback;

-- Durations: text or interval, not negative, finite; a lease of 0 expires at once.
begin;
select subject, next_iteration = now() as over_at_once from fetchq.doc_pick('rq_pick', 0, 1, '0s');
rollback;
select test.error($$select fetchq.doc_pick('rq_pick', 0, 1, '-1s')$$);
select test.error($$select fetchq.doc_pick('rq_pick', 0, 1, interval '-1 day')$$);
select test.error($$select fetchq.doc_pick('rq_pick', interval '1 month -31 days')$$);
select test.error($$select fetchq.doc_pick('rq_pick', 0, 1, 'soon')$$);
select test.error($$select fetchq.doc_pick('rq_pick', 0, 1, '')$$);
select test.error($$select fetchq.doc_pick('rq_pick', '5 parsecs')$$);
-- The error of PostgreSQL differs: an infinite interval exists since version 17.
select left(test.error($$select fetchq.doc_pick('rq_pick', 0, 1, 'infinity')$$), 2) = '22' as refused;
select test.error($$select fetchq.doc_pick('rq_pick', 0, 1, '300000 years')$$);

-- Not picked: documents that are due later, hidden, or of another status.
select fetchq.queue_truncate('rq_pick');
insert into fetchq_data.rq_pick__docs (subject, status, next_iteration, lock_upgrade) values
    ('killed', -1, '2020-01-01', null), ('planned and due', 0, '2020-01-01', null), ('active', 2, '2020-01-01', null),
    ('completed', 3, '2020-01-01', null), ('pending later', 1, '2970-01-01', null), ('hidden', 1, '2020-01-01', '2020-01-01');
select * from fetchq.doc_pick('rq_pick', 0, 10, '5m');
update fetchq_data.rq_pick__docs set lock_upgrade = null where subject = 'hidden';
select subject from fetchq.doc_pick('rq_pick', 0, 10, '5m');

-- A rejected document waits until its lease would have expired.
select fetchq.queue_truncate('rq_pick');
select fetchq.doc_push('rq_pick', 's1');
select subject from fetchq.doc_pick('rq_pick', 0, 1, '1h');
select fetchq.doc_reject('rq_pick', 's1', 'no', '{}');
select count(*) from fetchq.doc_pick('rq_pick', 0, 1, '1h');

-- A pick sees the pushes of its own transaction; a set-returning use works anywhere.
begin;
select fetchq.doc_push('rq_pick', 'b1');
select fetchq.doc_push('rq_pick', 'b2');
select (fetchq.doc_pick('rq_pick', 0, 1, '5m')).subject;
select p.subject from generate_series(1, 2) i, fetchq.doc_pick('rq_pick', 0, i, '5m') p;
rollback;

-- A missing queue and a paused queue return no rows.
select * from fetchq.doc_pick('rq_nope', 0, 1, '5m');
select * from fetchq.doc_pick('rq_nope');
update fetchq.queues set is_active = false where name = 'rq_pick';
select fetchq.doc_push('rq_pick', 'c1');
select subject from fetchq.doc_pick('rq_pick');
update fetchq.queues set is_active = true where name = 'rq_pick';

-- A trigger that suppresses updates must not make the counters wrong.
select fetchq.queue_truncate('rq_pick');
select fetchq.doc_push('rq_pick', 'd' || i) from generate_series(1, 3) i;
create function test.suppress() returns trigger language plpgsql as $$ begin return case when old.subject = 'd2' then null else new end; end $$;
create trigger suppress before update on fetchq_data.rq_pick__docs for each row execute function test.suppress();
select test.error($$select fetchq.doc_pick('rq_pick', 0, 3, '5m')$$);
select test.exact('rq_pick');
drop trigger suppress on fetchq_data.rq_pick__docs;
drop function test.suppress();
select subject from fetchq.doc_pick('rq_pick', 0, 3, '5m');
select test.exact('rq_pick');
select was_dropped from fetchq.queue_drop('rq_pick');
