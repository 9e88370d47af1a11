-- The maintenance jobs.
select was_created from fetchq.queue_create('rq_jobs');
-- Fixed ids, because messages contain them. The job without a queue must not run.
update fetchq.jobs set id = 1000000 + case task when 'mnt' then 1 when 'sts' then 2 when 'cmp' then 3 else 4 end where queue = 'rq_jobs';
update fetchq.jobs set next_iteration = '2970-01-01' where queue = '*';
create view test.jobs as
select task, attempts, iterations, last_iteration = now() as ran_now,
    case when next_iteration < now() then 'due' else (next_iteration - now())::text end as next
from fetchq.jobs where queue = 'rq_jobs' order by id;
create function test.due() returns void language sql as $$
    update fetchq.jobs set next_iteration = '2020-01-01' where queue = 'rq_jobs';
$$;

-- Claiming hides a job for the duration and counts the attempt.
select test.due();
begin;
select id, task, queue, attempts, iterations, next_iteration - now() as hidden_for, last_iteration, settings, payload from fetchq.mnt_job_pick('1m', 2) order by id;
select id, task, attempts from fetchq.mnt_job_pick('1m', 10) order by id;
select count(*) from fetchq.mnt_job_pick('1m', 10);
select * from test.jobs;
rollback;
select count(*) from fetchq.mnt_job_pick('1m', 0);
select test.error($$select fetchq.mnt_job_pick('1m', -1)$$);
select test.error($$select fetchq.mnt_job_pick('-1m', 1)$$);
select test.error($$select fetchq.mnt_job_pick('soon', 1)$$);

-- Rescheduling: the job has run.
begin;
select attempts from fetchq.mnt_job_pick('1m', 1);
select * from fetchq.mnt_job_reschedule(1000001, '1h');
select * from test.jobs where task = 'mnt';
rollback;
select * from fetchq.mnt_job_reschedule(-1, '1h');
select test.error($$select fetchq.mnt_job_reschedule(1000001, '-1h')$$);
select test.error($$select fetchq.mnt_job_reschedule(1000001, 'soon')$$);

-- Running: one job by default, with its settings.
begin;
select * from fetchq.mnt_job_run();
select * from test.jobs;
select * from fetchq.mnt_job_run(2);
select * from fetchq.mnt_job_run('1h', 10);
select * from fetchq.mnt_job_run(10);
select * from test.jobs;
rollback;
select test.error($$select fetchq.mnt_job_run(-1)$$);
select test.error($$select fetchq.mnt_job_run('1m', -1)$$);
select test.error($$select fetchq.mnt_job_run('-1m', 1)$$);
select * from fetchq.mnt_job_run(0);

-- A run makes no multixact: whoever passes by the old versions of the row would have to ask for the state of their
-- transactions each time. The first run of cmp, which notes what it has counted, makes one.
begin;
select processed from fetchq.mnt_job_run(10);
select test.due();
select mxid_age('1') as before \gset
select processed from fetchq.mnt_job_run(10);
select mxid_age('1') - :before as multixacts;
rollback;

-- A failing job is reported and stops no other job; its backoff is 1, 2, 4 … 64 times the duration.
update fetchq.jobs set settings = '{"limit": "many"}' where id = 1000001;
begin;
select * from fetchq.mnt_job_run('1m', 10);
select * from test.jobs;
commit;
create temp table seen_jobs (n int, attempts int, next text);
do $$ begin for i in 1..9 loop
    perform test.due();
    perform fetchq.mnt_job_run('1m', 10);
    insert into seen_jobs select i, attempts, next from test.jobs where task = 'mnt';
end loop; end $$;
select * from seen_jobs order by n;
drop table seen_jobs;
select task, attempts, iterations from test.jobs;

-- After the repair, the job runs as before.
update fetchq.jobs set settings = '{"delay": "7m"}' where id = 1000001;
select test.due();
begin;
select * from fetchq.mnt_job_run(10);
select * from test.jobs;
commit;

-- Other failures: errors of PostgreSQL, an unknown task, a missing queue, an invalid name.
update fetchq.jobs set settings = '{"delay": "often"}' where id = 1000002;
update fetchq.jobs set settings = '{"duration": "-1h"}' where id = 1000003;
update fetchq.queues set logs_retention = 'long' where name = 'rq_jobs';
insert into fetchq.jobs (id, task, queue) values (1000005, 'zzz', 'rq_jobs'), (1000006, 'mnt', 'rq_gone'), (1000007, 'mnt', 'not a queue');
update fetchq.jobs set next_iteration = '2020-01-01' where queue in ('rq_gone', 'not a queue');
select test.due();
select * from fetchq.mnt_job_run('1m', 20);
select task, attempts, iterations from test.jobs;
-- A failing job is rolled back: the job that could not be rescheduled leaves no snapshot.
select count(*) from fetchq_data.rq_jobs__metrics where metric = 'cnt' and created_at = (select max(last_iteration) from fetchq.jobs where id = 1000001);
delete from fetchq.jobs where id > 1000004 and id < 1000010;
update fetchq.jobs set settings = null where id in (1000002, 1000003);
update fetchq.queues set logs_retention = null where name = 'rq_jobs';
select test.due();
begin;
select * from fetchq.mnt_job_run(10);
select task, attempts, next from test.jobs;
commit;

-- Everything at once: documents, snapshots, recounts, retention of every queue; then the counters.
select was_created from fetchq.queue_create('rq_jobs2');
select fetchq.doc_push('rq_jobs', 'p1', '{}', timestamptz '2970-01-01');
select fetchq.doc_push('rq_jobs2', 'p1', '{}', timestamptz '2970-01-01');
update fetchq_data.rq_jobs__docs set next_iteration = '2020-01-01';
update fetchq_data.rq_jobs2__docs set next_iteration = '2020-01-01';
update fetchq.jobs set next_iteration = '2970-01-01', settings = '{"delay": "5m", "duration": "5m"}' where queue like 'rq\_jobs%';
begin;
select processed, packed > 0 as packed from fetchq.mnt();
select * from test.jobs where next <> '@ 5 mins' or not ran_now;
commit;
select subject, status from fetchq_data.rq_jobs__docs;
select subject, status from fetchq_data.rq_jobs2__docs;
select test.exact('rq_jobs');
select test.exact('rq_jobs2');
select count(*) from fetchq.counter_log;
select processed from fetchq.mnt('10m');
select test.error($$select fetchq.mnt('-1m')$$);
select test.error($$select fetchq.mnt('soon')$$);

-- The job without a queue packs the counters, and does not count as a job of a queue.
select fetchq.doc_push('rq_jobs', 'p2');
update fetchq.jobs set next_iteration = '2970-01-01' where queue <> '*';
update fetchq.jobs set next_iteration = '2020-01-01' where queue = '*';
begin;
select * from fetchq.mnt_job_run(10);
select task, attempts, next_iteration - now() >= '1 second' as has_delay from fetchq.jobs where queue = '*';
select count(*) from fetchq.counter_log;
commit;

-- In a call with many jobs, a pack that is due comes before jobs that are due for longer, because they read what it
-- leaves; not in a call with few, which would run nothing else. One that took long pauses for nine times as long.
begin;
select was_created from fetchq.queue_create('rq_jobs3');
select test.due();
update fetchq.jobs set next_iteration = '2020-01-01' where queue in ('rq_jobs2', 'rq_jobs3');
select fetchq.doc_push('rq_jobs', 'p3');
update fetchq.jobs set next_iteration = now() where queue = '*';
create function test.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.4); return null; end $$;
create trigger slow before update on fetchq.metrics for each statement execute function test.slow();
select * from fetchq.mnt_job_run(1);
select count(*) from fetchq.jobs where last_iteration = now() and queue = '*';
select * from fetchq.mnt_job_run(10);
select next_iteration - last_iteration >= '4 seconds' as has_pause, next_iteration - last_iteration <= '2 minutes' as has_end from fetchq.jobs where last_iteration = now() and queue = '*';
select count(*) from fetchq.jobs where last_iteration = now();
rollback;
drop view test.jobs;
drop function test.due();
select was_dropped from fetchq.queue_drop('rq_jobs');
select was_dropped from fetchq.queue_drop('rq_jobs2');

-- Snapshots of several queues in one call share what they read. They come last, when documents have become pending,
-- and have what is not packed.
begin;
select was_created from fetchq.queue_create('rq_jobs');
select was_created from fetchq.queue_create('rq_jobs2');
update fetchq.jobs set next_iteration = '2970-01-01';
update fetchq.jobs set next_iteration = '2020-01-01' where queue like 'rq\_jobs%' and task in ('mnt', 'sts');
select fetchq.doc_push('rq_jobs', 'p4', 3, 0, '1970-01-01', '{}');
select fetchq.doc_push('rq_jobs2', 'p4', '{}', timestamptz '2970-01-01');
update fetchq_data.rq_jobs2__docs set next_iteration = '2020-01-01' where subject = 'p4';
select processed from fetchq.mnt_job_run(10);
select 'rq_jobs' as queue, metric, value from fetchq_data.rq_jobs__metrics where created_at = now() and metric in ('cnt', 'pln', 'pnd', 'v3')
union all
select 'rq_jobs2', metric, value from fetchq_data.rq_jobs2__metrics where created_at = now() and metric in ('cnt', 'pln', 'pnd', 'v3')
order by 1, 2;
select status, count(*) from fetchq_data.rq_jobs__docs group by 1 order by 1;
select status, count(*) from fetchq_data.rq_jobs2__docs group by 1 order by 1;
rollback;
