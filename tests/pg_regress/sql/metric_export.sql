-- The metrics for monitoring systems.
select family, type, help from fetchq.metric_families();
select test.error($$select * from fetchq.metric_export('fetchq_nothing')$$);

-- The samples of the queues rq_mon*, without times, and those of a label.
create function test.samples(family text) returns table (sample text) language sql as $$
select s.name || coalesce((select '{' || string_agg(l.key || '=' || l.value, ', ' order by l.key <> 'queue', l.key) || '}' from jsonb_each_text(s.labels) l), '') || ' ' || s.value
from fetchq.metric_export(family) with ordinality s (family, name, labels, value, n)
where coalesce(s.labels ->> 'queue', 'rq_mon') like 'rq\_mon%'
order by n $$;
select was_created from fetchq.queue_create('rq_mon');
select was_created from fetchq.queue_create('rq_mon_dead');
select * from test.samples('fetchq_documents');
select * from test.samples('fetchq_wait_seconds');
select from fetchq.queue_configure('rq_mon', '{"dead_letter": "rq_mon_dead", "max_attempts": 2}');

-- Documents in all states, and what workers did.
select fetchq.doc_put('rq_mon', 's' || i, due_at => now() - interval '1 hour') from generate_series(1, 9) i;
select fetchq.doc_put('rq_mon', 'later', due_at => now() + interval '1 hour');
select fetchq.doc_put('rq_mon', 'overdue', due_at => now() + interval '1 hour');
update fetchq_data.rq_mon__docs set next_iteration = now() - interval '2 minutes' where subject = 'overdue';
select labels, value between 120 and 180 as is_two_minutes from fetchq.metric_export('fetchq_planned_overdue_seconds') where value > 0;
select subject from fetchq.doc_pick('rq_mon', 7) order by 1;
select fetchq.doc_complete('rq_mon', 's1'), fetchq.doc_kill('rq_mon', 's2'), fetchq.doc_drop('rq_mon', 's3'),
    fetchq.doc_reschedule('rq_mon', 's4', now() + interval '1 day'), fetchq.doc_reject('rq_mon', 's5', 'no', delay => '1 hour');
update fetchq_data.rq_mon__docs set next_iteration = now() - interval '1 minute' where subject = 's6';
select orphans from fetchq.mnt_run('rq_mon', 10) m (activated, orphans, killed);
select * from test.samples('fetchq_documents');
select * from test.samples('fetchq_pushed_total');
select * from test.samples('fetchq_picked_total');
select * from test.samples('fetchq_settled_total');
select * from test.samples('fetchq_leases_lost_total');
select * from test.samples('fetchq_dead_letters_total');
select labels, value between 3600 and 3660 as is_an_hour from fetchq.metric_export('fetchq_oldest_ready_age_seconds') where labels ->> 'queue' = 'rq_mon';
select * from test.samples('fetchq_workers');
select * from test.samples('fetchq_floor_misses_total');
select * from test.samples('fetchq_metric_missing');
select name, labels - 'database' - 'postgresql', value, labels ->> 'database' = current_database(), labels ->> 'postgresql' = current_setting('server_version')
from fetchq.metric_export('fetchq_info');

-- Histograms: the buckets grow, the last one has all documents, and packing changes nothing.
create view test.histograms as
select h.family, h.queue, h.le, h.value, h.value >= lag(h.value, 1, 0::float8) over w as grows, h.n_all
from (
    select s.family, s.labels ->> 'queue' as queue, (s.labels ->> 'le')::float8 as le, s.value,
        max(s.value) filter (where s.name like '%\_count') over (partition by s.family, s.labels ->> 'queue') as n_all, s.name
    from fetchq.metric_export() s where s.family like '%\_seconds' and s.labels ? 'queue') h
where h.name like '%\_bucket'
window w as (partition by h.family, h.queue order by h.le);
select family, queue, count(*) as buckets, bool_and(grows) as grow, max(value) = max(n_all) as is_complete, max(n_all) as documents,
    max(value) filter (where le < 4300) as up_to_an_hour, max(value) filter (where le < 60) as up_to_a_minute
from test.histograms where queue like 'rq\_mon%' group by 1, 2 order by 1, 2;
select name, labels, value between 7 * 3600 * 0.85 and 7 * 3600 * 1.15 as is_about from fetchq.metric_export('fetchq_wait_seconds')
where name = 'fetchq_wait_seconds_sum' and labels ->> 'queue' = 'rq_mon';
create table test.before as select * from fetchq.metric_export('fetchq_wait_seconds') union all select * from fetchq.metric_export('fetchq_settled_total');
select fetchq.metric_log_pack() > 0 as packed;
select count(*) as changed from (
    (select * from fetchq.metric_export('fetchq_wait_seconds') union all select * from fetchq.metric_export('fetchq_settled_total'))
    except select * from test.before) d;
-- Those of the last minutes become those of all before, and stay in the histogram.
update fetchq.timings set minute = minute - interval '1 hour' where minute is not null;
select count(*) as changed from (select * from fetchq.metric_export('fetchq_wait_seconds') except select * from test.before) d;
drop table test.before;
drop view test.histograms;

-- The view has each sample with its type and help; the name of a sample begins with its family.
select count(*) > 50 as is_there, count(*) = (select count(*) from fetchq.metric_export()) as is_complete,
    count(*) = count(distinct (name, labels)) as are_distinct, bool_and(starts_with(name, family)) as are_named, bool_and(help <> '') as have_help
from fetchq.metric_samples;
select type, family, name from fetchq.metric_samples where labels ->> 'queue' = 'rq_mon' and name like '%\_sum' order by 2;
-- Without an argument, and with each one, it is the same.
select count(*) from (
    select family, name, labels from fetchq.metric_export()
    except all select e.family, e.name, e.labels from fetchq.metric_families() f, fetchq.metric_export(f.family) e) d;

-- Paused queues, schedules, and maintenance.
select fetchq.queue_pause('rq_mon');
select * from test.samples('fetchq_queue_paused');
select * from test.samples('fetchq_documents') where sample like '%blocked%' or sample like '%ready%';
select fetchq.queue_resume('rq_mon');
select was_created from fetchq.schedule_create('rq_mon_a', 'rq_mon', '@daily');
select was_created from fetchq.schedule_create('rq_mon_p', 'rq_mon', '@daily');
select fetchq.schedule_pause('rq_mon_p');
select was_created from fetchq.schedule_create('rq_mon_f', 'rq_mon', '@daily');
update fetchq.schedules set attempts = 1 where name = 'rq_mon_f';
select * from test.samples('fetchq_schedules');
update fetchq.jobs set last_iteration = now() - interval '1 hour' where task = 'cmp' and queue like 'rq\_mon%';
select labels, value between 3600 and 3660 as is_an_hour from fetchq.metric_export('fetchq_maintenance_last_run_age_seconds') where labels ->> 'service' = 'recounts';
update fetchq.jobs set attempts = 2 where task = 'drp' and queue = 'rq_mon';
select * from test.samples('fetchq_maintenance_failing_jobs') where sample like '%retention%';

-- metric_reset() starts the totals and the histograms again.
select cnt from fetchq.metric_reset('rq_mon');
select * from test.samples('fetchq_picked_total');
select * from test.samples('fetchq_wait_seconds');

-- Where the documents cannot be looked at, they are pending.
begin;
drop index fetchq_data.rq_mon__docs_pick_idx;
select * from test.samples('fetchq_documents') where sample like '%=rq\_mon,%';
select labels from fetchq.metric_export('fetchq_oldest_ready_age_seconds') where labels ->> 'queue' like 'rq\_mon%';
rollback;
begin;
drop table fetchq_data.rq_mon__docs;
select labels from fetchq.metric_export('fetchq_planned_overdue_seconds') where labels ->> 'queue' like 'rq\_mon%';
rollback;
begin read only;
select count(*) > 50 from fetchq.metric_samples;
rollback;
-- A name that is no name of a queue, which a client has inserted.
begin;
insert into fetchq.queues (name) values (E'a "b"\\\n<c>');
select labels, value from fetchq.metric_export('fetchq_queue_paused') where labels ->> 'queue' ~ '<';
rollback;

-- Rights: a producer sees the counters, a reader all, others nothing of the queues.
create role rq_mon_producer;
create role rq_mon_reader;
create role rq_mon_nobody;
select fetchq.queue_grant('rq_mon', 'rq_mon_producer', 'producer');
select fetchq.queue_grant('rq_mon', 'rq_mon_reader', 'reader');
grant usage on schema fetchq to rq_mon_nobody;
grant execute on function test.samples(text) to public;
set role rq_mon_producer;
select * from test.samples('fetchq_documents');
select * from test.samples('fetchq_schedules');
set role rq_mon_reader;
select * from test.samples('fetchq_documents');
select count(distinct labels -> 'queue') from fetchq.metric_samples;
set role rq_mon_nobody;
select distinct family from fetchq.metric_samples where family <> 'fetchq_maintenance_last_run_age_seconds' order by 1;
select * from test.samples('fetchq_schedules');
reset role;
drop function test.samples(text);
select fetchq.schedule_drop(name) from fetchq.schedules where name like 'rq\_mon%';
select was_dropped from fetchq.queue_drop('rq_mon');
select was_dropped from fetchq.queue_drop('rq_mon_dead');
drop owned by rq_mon_producer, rq_mon_reader, rq_mon_nobody;
drop role rq_mon_producer, rq_mon_reader, rq_mon_nobody;
