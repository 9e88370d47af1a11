-- Schedules. Their times are in the future; schedule_run_at() gets a later time as its argument.
set timezone = 'UTC';
set datestyle = 'ISO';
select was_created from fetchq.queue_create('rq_sched');

-- Errors.
\pset format unaligned
\pset tuples_only on
select c || ' => ' || test.error('select fetchq.' || c) from unnest(array[
    $$schedule_create('', 'rq_sched', '@daily')$$, $$schedule_create(repeat('x', 235), 'rq_sched', '@daily')$$,
    $$schedule_create('s', 'rq_nope', '@daily')$$, $$schedule_create('s', '1', '@daily')$$,
    $$schedule_create('s', 'rq_sched', '')$$, $$schedule_create('s', 'rq_sched', 'soon')$$,
    $$schedule_create('s', 'rq_sched', '* * * *')$$, $$schedule_create('s', 'rq_sched', '* * * * * * *')$$,
    $$schedule_create('s', 'rq_sched', '60 * * * *')$$, $$schedule_create('s', 'rq_sched', '0 25 * * * fry')$$, $$schedule_create('s', 'rq_sched', 'every fortnight')$$, $$schedule_create('s', 'rq_sched', '@often')$$,
    $$schedule_create('s', 'rq_sched', '0 0 30 2 *')$$,
    $$schedule_create('s', 'rq_sched', '-5 minutes')$$, $$schedule_create('s', 'rq_sched', '0 s')$$,
    $$schedule_create('s', 'rq_sched', '1 month -40 days')$$, $$schedule_create('s', 'rq_sched', '2 months -1 day')$$,
    $$schedule_create('s', 'rq_sched', '1.5 seconds')$$,
    $$schedule_create('s', 'rq_sched', '@daily', timezone => 'Europe/Berln')$$,
    $$schedule_create('s', 'rq_sched', '@daily', catch_up => 'never')$$,
    $$schedule_create('s', 'rq_sched', '@daily', catch_up_limit => 0)$$,
    $$schedule_create('s', 'rq_sched', '@daily', jitter => '-1 s')$$,
    $$schedule_create('s', 'rq_sched', '@daily', ends_at => '2000-01-01')$$,
    $$schedule_create('s', 'rq_sched', '@daily', headers => '[]')$$, $$schedule_create('s', 'rq_sched', '@daily', headers => 'null')$$,
    $$schedule_create('s', 'rq_sched', null)$$,
    $$schedule_pause('s')$$, $$schedule_resume('s')$$,
    $$schedule_preview('@daily', 'Mars')$$, $$schedule_preview('@daily', n => -1)$$, $$schedule_run(-1)$$]) c;
\pset tuples_only off
\pset format aligned
select count(*) from fetchq.schedule_list();

-- The clock is set forward over 02:30, and back over it.
select * from fetchq.schedule_preview('30 2 * * *', 'Europe/Berlin', '2026-03-27', 4);
select e, array(select tick from fetchq.schedule_preview(e, 'UTC', '2026-03-27 10:00:30+00', 2)) from unnest('{every minute,@every hour,every day,@minutely,@hourly}'::text[]) e;
select * from fetchq.schedule_preview('30 2 * * *', 'Europe/Berlin', '2026-10-24', 3);
select * from fetchq.schedule_preview('*/30 * * * *', 'Europe/Berlin', '2026-03-29 00:10', 4);
select * from fetchq.schedule_preview('*/30 * * * *', 'Europe/Berlin', '2026-10-24 23:40', 6);
select * from fetchq.schedule_preview('1 day', 'Europe/Berlin', '2026-03-27 01:30', 3);
select * from fetchq.schedule_preview('24 hours', 'Europe/Berlin', '2026-03-27 01:30', 3);
select * from fetchq.schedule_preview('30 2 * * *', 'America/New_York', '2026-03-07 12:00', 2);
select * from fetchq.schedule_preview('15 2 * * *', 'Australia/Lord_Howe', '2026-10-03', 2);
-- All forms of a schedule.
select s, array(select local_time from fetchq.schedule_preview(s, 'UTC', '2026-01-31 12:00', 3)) as ticks
from unnest(array['@hourly', '@daily', '@midnight', '@weekly', '@monthly', '@yearly', '0 0 l * *', '0 0 * * mon#2', '0 0 * * fri#l', '0 0 15w * *',
    '*/20 * * * * *', '0 30 9-17/4 * * MON-FRI', '1 month', 'every 90 minutes', '@every 1 week', 'PT36H', '1 day 2 hours 30 minutes', '1 year 1 mon']) s;
select count(*) from fetchq.schedule_preview('* * * * * *', n => 0);
select count(*) from fetchq.schedule_preview('@yearly', 'UTC', '4990-06-01', 100);

-- Creating, changing, listing.
select * from fetchq.schedule_create('minutes', 'RQ_Sched', '* * * * *', '{"n": 1}', 'Europe/Berlin', 2, 3, 'all', 2, '10 s', '2100-01-01', '2100-01-01 00:10');
select test.error($$select fetchq.schedule_create('minutes', 'rq_sched', '@daily')$$);
select * from fetchq.schedule_create('once', 'rq_sched', 'every 1 hour', starts_at => '2100-01-01 00:00:00.5');
select * from fetchq.schedule_create('skip', 'rq_sched', '@hourly', catch_up => 'skip', starts_at => '2100-01-01');
select name, queue, schedule, timezone, state, next_tick, last_tick, ticks, catch_up, catch_up_limit, jitter from fetchq.schedule_list();
select name, version, priority, payload, starts_at, ends_at, created_at = now() as is_new, attempts, last_error from fetchq.schedule_list();

-- Headers: each document gets them. Without the option a change removes them.
select was_created from fetchq.schedule_create('headers', 'rq_sched', '1 day', headers => '{"trace": "1"}', starts_at => '2099-01-01', ends_at => '2099-01-03');
select headers from fetchq.schedule_list() where name = 'headers';
select * from fetchq.schedule_run_at(9, '2099-01-01');
select subject, headers from fetchq_data.rq_sched__docs;
select subject, headers from fetchq.doc_get('rq_sched', 'headers@2099-01-01T00:00:00Z');
select was_created from fetchq.schedule_create('headers', 'rq_sched', '1 day', starts_at => '2099-01-01', ends_at => '2099-01-03', replace => true);
select headers from fetchq.schedule_list() where name = 'headers';
select * from fetchq.schedule_run_at(9, '2099-01-02');
select subject, headers from fetchq_data.rq_sched__docs order by subject;
select fetchq.schedule_drop('headers');
select fetchq.doc_drop_many('rq_sched', array(select subject from fetchq.doc_pick('rq_sched', 0, 9, '1m')));
delete from fetchq_data.rq_sched__docs;
select fetchq.metric_reset('rq_sched') is not null as was_reset;

-- With a queue: the schedule has to belong to it, and the queue has to exist.
select was_created from fetchq.queue_create('rq_sched2');
select was_created from fetchq.schedule_create('of two', 'rq_sched2', '@hourly', starts_at => '2100-01-01');
select name, queue from fetchq.schedule_list('RQ_Sched2');
select name from fetchq.schedule_list(queue => 'rq_sched');
select count(*) from fetchq.schedule_list(null);
\pset format unaligned
\pset tuples_only on
select c || ' => ' || test.error('select fetchq.' || c) from unnest(array[
    $$schedule_pause('of two', 'rq_sched')$$, $$schedule_resume('of two', 'rq_sched')$$, $$schedule_tick('of two', 'rq_sched')$$,
    $$schedule_pause('none', 'rq_sched')$$, $$schedule_drop('of two', 'rq_nope')$$, $$schedule_pause('of two', 'rq_nope')$$, $$schedule_list('rq_nope')$$,
    $$schedule_run(1, 'rq_nope')$$, $$schedule_run(1, '1')$$, $$schedule_drop('of two', '')$$]) c;
\pset tuples_only off
\pset format aligned
select fetchq.schedule_pause('of two', queue => 'rq_sched2'), fetchq.schedule_pause(queue => 'rq_sched2', name => 'of two');
select was_resumed from fetchq.schedule_resume('of two', 'rq_sched2');
select was_created from fetchq.schedule_tick('of two', 'rq_sched2');
-- Only the schedules of the queue run that are due.
select fetchq.queue_truncate('rq_sched2');
update fetchq.schedules set next_tick = '2020-01-01', due_at = '2020-01-01', anchor = '2020-01-01', starts_at = null where name in ('of two', 'skip');
select * from fetchq.schedule_run(9, 'rq_sched2');
select name, ticks from fetchq.schedule_list() where ticks > 0;
update fetchq.schedules set next_tick = '2100-01-01', due_at = '2100-01-01', anchor = '2100-01-01', starts_at = '2100-01-01' where name = 'skip';
-- A role needs rights on the queue that it names, and none on that of another schedule.
create role rq_sched_role;
grant usage on schema fetchq, test to rq_sched_role;
select fetchq.queue_grant('rq_sched', 'rq_sched_role', 'manager');
set role rq_sched_role;
select c || ' => ' || test.error('select fetchq.' || c) as of_role from unnest(array[
    $$schedule_list('rq_sched2')$$, $$schedule_run(1, 'rq_sched2')$$, $$schedule_drop('of two', 'rq_sched2')$$, $$schedule_drop('of two')$$]) c;
select fetchq.schedule_drop('of two', 'rq_sched') as was_dropped, (select count(*) from fetchq.schedule_list('rq_sched')) as seen;
reset role;
drop owned by rq_sched_role;
drop role rq_sched_role;
select fetchq.schedule_drop('of two', 'rq_sched2'), fetchq.schedule_drop('of two', 'rq_sched2');
select was_dropped from fetchq.queue_drop('rq_sched2');

-- No schedule is due.
select * from fetchq.schedule_run();
select * from fetchq.schedule_run_at(10, '2099-12-31 23:59:59');
-- On time, and a little late: all ticks since the last one.
select * from fetchq.schedule_run_at(10, '2100-01-01');
select * from fetchq.schedule_run_at(10, '2100-01-01');
select * from fetchq.schedule_run_at(10, '2100-01-01 00:02');
-- Half a minute after a tick, with missed ticks: all of them, up to the limit.
select * from fetchq.schedule_run_at(10, '2100-01-01 00:06:30');
-- One schedule at a time.
select * from fetchq.schedule_run_at(1, '2100-01-01 03:30');
select * from fetchq.schedule_run_at(0, '2100-01-01 03:30');
select * from fetchq.schedule_run_at(9, '2100-01-01 03:30');
select subject, version, priority, payload, status, next_iteration >= substr(subject, strpos(subject, '@') + 1)::timestamptz as in_time,
    next_iteration < substr(subject, strpos(subject, '@') + 1)::timestamptz + interval '10 s' as in_jitter
from fetchq_data.rq_sched__docs order by subject;
select count(distinct next_iteration - substr(subject, strpos(subject, '@') + 1)::timestamptz) > 3 as are_spread
from fetchq_data.rq_sched__docs where subject like 'minutes@%';
select name, state, next_tick, last_tick, ticks from fetchq.schedule_list();
select test.exact('rq_sched');

-- A tick whose document exists has happened.
select fetchq.doc_push('rq_sched', 'skip@2100-01-01T04:00:00Z');
select * from fetchq.schedule_run_at(9, '2100-01-01 04:00');
select name, next_tick, last_tick, ticks from fetchq.schedule_list();

-- Ticks during a pause are not caught up.
select fetchq.schedule_pause('skip'), fetchq.schedule_pause('skip');
select * from fetchq.schedule_run_at(9, '2100-01-02');
select name, state, next_tick from fetchq.schedule_list();
select * from fetchq.schedule_resume('skip');
select * from fetchq.schedule_resume('skip');

-- A change that keeps the times skips no tick. A change of the times starts anew, but never before
-- the last tick.
select * from fetchq.schedule_create('once', 'rq_sched', '1 hour', '{"changed": 1}', starts_at => '2100-01-01 00:00:00.5', replace => true);
select * from fetchq.schedule_create('skip', 'rq_sched', '30 * * * *', replace => true);
select fetchq.schedule_pause('once');
select * from fetchq.schedule_create('once', 'rq_sched', '2 hours', starts_at => '2100-01-01', replace => true);
select name, state, schedule, next_tick, last_tick, ticks from fetchq.schedule_list();

-- A failing schedule is reported and waits; the others run.
select was_created from fetchq.queue_create('rq_gone');
select was_created from fetchq.schedule_create('gone', 'rq_gone', '@hourly', starts_at => '2100-01-02');
select was_created from fetchq.schedule_create('late', 'rq_sched', '@hourly', starts_at => '2100-01-02');
alter table fetchq_data.rq_gone__docs rename to rq_went__docs;
select * from fetchq.schedule_run_at(9, '2100-01-02');
select * from fetchq.schedule_run_at(9, '2100-01-02 00:00:00.9');
select * from fetchq.schedule_run_at(9, '2100-01-02 00:00:01');
select name, state, next_tick, attempts, last_error, (select due_at from fetchq.schedules s where s.name = l.name)
from fetchq.schedule_list() l where name in ('gone', 'late');
alter table fetchq_data.rq_went__docs rename to rq_gone__docs;
select * from fetchq.schedule_resume('gone');
select * from fetchq.schedule_run_at(9, '2100-01-02 00:00:01');
select name, state, next_tick, last_tick, attempts, last_error from fetchq.schedule_list() l where name = 'gone';

-- Maintenance runs schedules too: this schedule has just become due.
select was_created from fetchq.schedule_create('now', 'rq_gone', '* * * * * *');
update fetchq.schedules set next_tick = date_trunc('second', now()), due_at = date_trunc('second', now()) where name = 'now';
select success from fetchq.mnt_job_run(1);
select ticks > 0 as ran, last_tick is not null as is_noted from fetchq.schedules where name = 'now';
update fetchq.schedules set next_tick = date_trunc('second', now()), due_at = date_trunc('second', now()) where name = 'now';
select processed > 0 as done from fetchq.mnt();
select ticks > 0 as ran, attempts from fetchq.schedules where name = 'now';

-- An extra tick: the document of a tick, now. The schedule stays as it is, also a paused and an ended one.
begin;
select was_created from fetchq.queue_create('rq_extra');
select was_created from fetchq.schedule_create('extra', 'rq_extra', '@yearly', '{"n": 1}', version => 2, priority => 3, headers => '{"h": "1"}', jitter => '1 hour');
create temp table kept as select s.* from fetchq.schedules s where name = 'extra';
select subject = 'extra@' || to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS') || 'Z' as is_of_now, was_created from fetchq.schedule_tick('extra');
select was_created as again from fetchq.schedule_tick('extra');
select version, priority, status, payload, headers, next_iteration <= now() as is_due from fetchq_data.rq_extra__docs;
select count(*) as is_unchanged from (select * from kept intersect select s.* from fetchq.schedules s) s;
delete from fetchq_data.rq_extra__docs;
select fetchq.schedule_pause('extra');
select was_created from fetchq.schedule_tick('extra');
delete from fetchq_data.rq_extra__docs;
update fetchq.schedules set is_active = true, next_tick = null, due_at = null where name = 'extra';
select was_created from fetchq.schedule_tick('extra');
select test.error($$select fetchq.schedule_tick('nope')$$);
select test.error($$select fetchq.schedule_tick(null)$$);
-- A manager of the queue may do that, a worker may not, and not beyond the rights of who made the schedule.
create role rq_extra_worker;
create role rq_extra_manager;
select fetchq.queue_grant('rq_extra', 'rq_extra_worker', 'worker'), fetchq.queue_grant('rq_extra', 'rq_extra_manager', 'manager');
grant usage on schema test to public;
grant execute on function test.error(text) to public;
delete from fetchq_data.rq_extra__docs;
set local role rq_extra_worker;
select test.error($$select fetchq.schedule_tick('extra')$$);
set local role rq_extra_manager;
select was_created from fetchq.schedule_tick('extra');
reset role;
create role rq_extra_maker;
update fetchq.schedules set made_by = 'rq_extra_maker' where name = 'extra';
select test.error($$select fetchq.schedule_tick('extra')$$);
rollback;

-- The table rejects invalid values.
select test.error($$insert into fetchq.schedules (name, queue) values ('s', 'q')$$);
select test.error($$insert into fetchq.schedules (name, queue, cron, every) values ('s', 'q', '@daily', '1 h')$$);
select test.error($$update fetchq.schedules set catch_up = 'some'$$);
select test.error($$update fetchq.schedules set catch_up_limit = 10001$$);
select test.error($$update fetchq.schedules set headers = '[]'$$);

-- The schedules of a queue are dropped with it.
set client_min_messages = notice;
select was_dropped from fetchq.queue_drop('rq_gone');
select fetchq.schedule_drop('late'), fetchq.schedule_drop('late');
select was_dropped from fetchq.queue_drop('rq_sched');
reset client_min_messages;
select count(*) from fetchq.schedules;
