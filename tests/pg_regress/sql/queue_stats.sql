-- The statistics of queues.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_stat');
create function test.stat(queue text) returns text language sql as $$
select format('ready %s, retrying %s, blocked %s, planned %s, active %s, completed %s, killed %s, oldest %s, next %s; pushed %s, picked %s, succeeded %s, failed %s, lost %s; wait %s, run %s%s',
    ready, retrying, blocked, planned, active, completed, killed, oldest_ready > '0 s', next_due > now(),
    pushed, picked, succeeded, failed, lost,
    wait_p50 > '0 s' and wait_p50 <= wait_p95 and wait_p95 <= wait_p99, run_p50 > '0 s' and run_p99 >= run_p95, case when is_paused then ', paused' end)
from fetchq.queue_stats(queue) $$;
select test.stat('rq_stat');
select queue from fetchq.queue_stats('RQ_Stat');
select test.error($$select * from fetchq.queue_stats('rq_nope')$$);
select test.error($$select * from fetchq.queue_stats('no queue')$$);
select count(*) from fetchq.queue_stats(null) where queue = 'rq_stat';

-- Documents of several versions and priorities; two of them later.
select fetchq.doc_push('rq_stat', 's' || i, i % 3, i % 4 - 1, now() - i * interval '1 hour', '{}') from generate_series(0, 11) i;
select fetchq.doc_push('rq_stat', 'later-' || i, 0, 0, now() + i * interval '1 hour', '{}') from generate_series(1, 2) i;
select test.stat('rq_stat');
select oldest_ready between '11 h' and '12 h' as is_oldest, next_due - now() between '50 min' and '60 min' as is_next from fetchq.queue_stats('rq_stat');
select count(*) from fetchq.doc_pick('rq_stat', 1, 3, '1h');
select oldest_ready between '11 h' and '12 h' as is_oldest from fetchq.queue_stats('rq_stat');
select count(*) from fetchq.doc_pick('rq_stat', 2, 100, '1h');
select test.stat('rq_stat');
select oldest_ready between '9 h' and '11 h' as is_oldest from fetchq.queue_stats('rq_stat');

-- Rejected documents wait for their retry.
select from fetchq.queue_configure('rq_stat', '{"retry": {"base": "10 minutes"}}');
select fetchq.doc_reject('rq_stat', subject, 'no', '{}') from fetchq_data.rq_stat__docs where status = 2 and version = 2;
select test.stat('rq_stat');
select next_due - now() between '5 min' and '10 min' as is_next from fetchq.queue_stats('rq_stat');

-- All ways to settle.
select fetchq.doc_complete('rq_stat', 's10'), fetchq.doc_complete('rq_stat', 's7'), fetchq.doc_complete('rq_stat', 's4');
select subject, attempts from fetchq.doc_pick('rq_stat', 0, 4, '1h') order by 1;
select fetchq.doc_complete('rq_stat', 's0'), fetchq.doc_kill('rq_stat', 's3'), fetchq.doc_drop('rq_stat', 's6');
update fetchq_data.rq_stat__docs set next_iteration = now() - interval '1 minute' where subject = 's9';
select orp from fetchq.mnt_run('rq_stat', 10) m (orp);
select test.stat('rq_stat');
select fetchq.metric_log_pack() > 0 as packed;
select test.stat('rq_stat');

-- A time of -infinity says nothing about an age.
begin;
update fetchq_data.rq_stat__docs set next_iteration = '-infinity' where status in (0, 1);
select ready > 0 as is_ready, planned > 0 as is_planned, oldest_ready from fetchq.queue_stats('rq_stat');
select name, value from fetchq.metric_export() where labels ->> 'queue' = 'rq_stat' and name in ('fetchq_oldest_ready_age_seconds', 'fetchq_planned_overdue_seconds');
rollback;

-- What holds documents back: pause, cap, rate and order.
begin;
select fetchq.queue_pause('rq_stat');
select test.stat('rq_stat');
rollback;
begin;
select from fetchq.queue_configure('rq_stat', '{"max_active": 2}');
select test.stat('rq_stat');
select count(*) from fetchq.doc_pick('rq_stat', 1, 10, '1h');
select test.stat('rq_stat');
rollback;
begin;
select from fetchq.queue_configure('rq_stat', '{"rate": {"picks": 1, "per": "1 hour"}}');
select test.stat('rq_stat');
rollback;
select was_created from fetchq.queue_create('rq_stat_order');
select from fetchq.queue_configure('rq_stat_order', '{"ordered": true}');
select fetchq.doc_put('rq_stat_order', 's' || i, ordering_key => 'k' || i % 2) from generate_series(1, 10) i;
select test.stat('rq_stat_order');
select count(*) from fetchq.doc_pick('rq_stat_order', 0, 1, '1h');
select test.stat('rq_stat_order');
select was_dropped from fetchq.queue_drop('rq_stat_order');

-- The dead-letter queue of another one is known as such.
select was_created from fetchq.queue_create('rq_stat_source', '{"dead_letter": "rq_stat"}');
select queue, is_dead_letter_queue from fetchq.queue_stats() where queue like 'rq_stat%' order by queue;
select labels ->> 'queue' as queue, value from fetchq.metric_export('fetchq_dead_letter_queue') where labels ->> 'queue' like 'rq_stat%' order by 1;
select from fetchq.queue_configure('rq_stat_source', '{"dead_letter": null}');
select is_dead_letter_queue from fetchq.queue_stats('rq_stat');
select was_dropped from fetchq.queue_drop('rq_stat_source');

-- A read-only transaction, and one with an old snapshot.
begin read only;
select test.stat('rq_stat') is not null;
rollback;
begin isolation level repeatable read;
select test.stat('rq_stat') is not null;
rollback;

-- Without the indexes, and without the table, what is known is shown.
begin;
drop index fetchq_data.rq_stat__docs_pick_idx;
select ready, retrying, blocked, oldest_ready, next_due, active, pushed from fetchq.queue_stats('rq_stat');
rollback;
begin;
drop index fetchq_data.rq_stat__docs_due_idx;
select ready, retrying, blocked, next_due, active, pushed from fetchq.queue_stats('rq_stat');
rollback;
begin;
drop table fetchq_data.rq_stat__docs;
select ready, retrying, blocked, next_due, active, pushed from fetchq.queue_stats('rq_stat');
rollback;

-- Rights: a producer sees the counters, a reader all, others nothing.
create role rq_stat_producer;
create role rq_stat_reader;
create role rq_stat_nobody;
select fetchq.queue_grant('rq_stat', 'rq_stat_producer', 'producer');
select fetchq.queue_grant('rq_stat', 'rq_stat_reader', 'reader');
grant usage on schema fetchq to rq_stat_nobody;
grant execute on function test.stat(text), test.error(text) to public;
grant usage on schema test to public;
set role rq_stat_producer;
select queue, ready, retrying, blocked, oldest_ready, next_due, active, pushed from fetchq.queue_stats();
set role rq_stat_reader;
select test.stat('rq_stat');
select count(*) from fetchq.queue_stats();
set role rq_stat_nobody;
select count(*) from fetchq.queue_stats();
select test.error($$select * from fetchq.queue_stats('rq_stat')$$);
reset role;
drop function test.stat(text);
select was_dropped from fetchq.queue_drop('rq_stat');
drop owned by rq_stat_producer, rq_stat_reader, rq_stat_nobody;
drop role rq_stat_producer, rq_stat_reader, rq_stat_nobody;
