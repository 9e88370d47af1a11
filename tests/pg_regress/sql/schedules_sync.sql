-- What a deployment declares: its schedules become those of the list. Their times are in the future.
set timezone = 'UTC';
set datestyle = 'ISO';
select (fetchq.queue_create(q)).was_created from unnest('{rq_sync,rq_sync2}'::text[]) q;
create function sync_shown() returns table (name text, owner text, queue text, schedule text, state text, next_tick timestamptz, ticks bigint, payload jsonb)
language sql as $$ select name, owner, queue, schedule, state, next_tick, ticks, payload from fetchq.schedule_list() $$;

-- All keys, and the defaults.
select * from fetchq.schedules_sync('shop', '[
    {"name": "nightly", "queue": "RQ_Sync", "schedule": "30 2 * * *", "starts_at": "2100-01-01"},
    {"name": "full", "queue": "rq_sync2", "schedule": "every 90 minutes", "payload": [1.50, {"b": 1, "a": "é"}], "timezone": "Europe/Berlin", "version": 2, "priority": -3,
     "catch_up": "all", "catch_up_limit": 7, "jitter": "5 min", "starts_at": "2100-01-01 00:00:00+00", "ends_at": "2101-01-01", "headers": {"trace": "1"}},
    {"name": "nulls", "queue": "rq_sync", "schedule": "@yearly", "payload": null, "timezone": null, "version": null, "priority": null, "catch_up": null,
     "catch_up_limit": null, "jitter": null, "starts_at": "2100-06-01", "ends_at": null, "headers": null}]');
select * from sync_shown();
select name, timezone, version, priority, catch_up, catch_up_limit, jitter, starts_at, ends_at, headers from fetchq.schedule_list();
-- What schedule_create makes of the same arguments is the same.
begin;
select was_created from fetchq.schedule_create('by hand', 'rq_sync', '30 2 * * *', starts_at => '2100-01-01');
select count(*) from (select distinct to_jsonb(s) - '{name,owner,created_at}'::text[] from fetchq.schedules s where name in ('nightly', 'by hand')) x;
rollback;

-- Kept: not even written. Its tick, its pause, its failures and its counts stay.
update fetchq.schedules set ticks = 5, last_tick = '2099-12-31', attempts = 2, last_error = 'why', due_at = '2100-02-02' where name = 'full';
select fetchq.schedule_pause('nulls');
create temp table sync_before as select name, format('%s %s %s', ctid, xmin, to_jsonb(s)) as row from fetchq.schedules s;
select * from fetchq.schedules_sync('shop', '[
    {"schedule": "@yearly", "queue": "rq_sync", "name": "nulls", "starts_at": "2100-06-01T02:00:00+02:00"},
    {"name": "full", "queue": "rq_sync2", "schedule": "90 minutes", "payload": [1.50, {"a": "\u00e9", "b": 1}], "timezone": "Europe/Berlin", "version": 2, "priority": -3,
     "catch_up": "all", "catch_up_limit": 7, "jitter": "300 s", "starts_at": "2100-01-01", "ends_at": "2101-01-01 00:00", "headers": {"trace": "1"}},
    {"name": "nightly", "queue": "rq_sync", "schedule": "30 2 * * *", "starts_at": "2100-01-01"}]');
select count(*), count(b.name) as as_before from fetchq.schedules s left join sync_before b on b.name = s.name and b.row = format('%s %s %s', s.ctid, s.xmin, to_jsonb(s));
-- Changed: the payload alone, so the tick stays; the times, so there is another one. A pause stays. Dropped: what is left out.
select * from fetchq.schedules_sync('shop', '[
    {"name": "nulls", "queue": "rq_sync", "schedule": "@daily", "starts_at": "2100-06-01"},
    {"name": "new", "queue": "rq_sync", "schedule": "@yearly"},
    {"name": "nightly", "queue": "rq_sync", "schedule": "30 2 * * *", "starts_at": "2100-01-01", "payload": {"n": 1}}]');
select name, state, next_tick - '1 s'::interval > now() as is_next, ticks, payload from sync_shown();
select * from fetchq.schedules_sync('shop', '[
    {"name": "nulls", "queue": "rq_sync2", "schedule": "@daily", "starts_at": "2100-06-01"},
    {"name": "nightly", "queue": "rq_sync", "schedule": "45 2 * * *", "starts_at": "2100-01-01", "payload": {"n": 1}}]');
select * from sync_shown();
-- Each of the other keys makes a difference, and numbers that are equal but written in another way do.
create function sync_one(more jsonb) returns text language sql as $$
    select action from fetchq.schedules_sync('one', jsonb_build_array('{"name": "one", "queue": "rq_sync", "schedule": "1 day", "starts_at": "2100-01-01"}' || more))
$$;
select sync_one('{}');
select k, sync_one(jsonb_build_object(k, v)), sync_one(jsonb_build_object(k, v)), sync_one('{}') as back from (values
    ('payload', '{"n": 1}'::jsonb), ('payload', '0'), ('headers', '{}'), ('timezone', '"Europe/Berlin"'), ('version', '1'), ('priority', '1'), ('catch_up', '"skip"'),
    ('catch_up_limit', '1'), ('jitter', '"1 s"'), ('starts_at', '"2100-01-02"'), ('ends_at', '"2100-01-03"'), ('schedule', '"24 hours"'), ('queue', '"rq_sync2"')) v (k, v);
select sync_one('{"payload": {"n": 1}}'), sync_one('{"payload": {"n": 1.0}}'), sync_one('{"jitter": "1 day"}'), sync_one('{"jitter": "24 hours"}');
-- One that has ended, and is declared still, is kept.
update fetchq.schedules set next_tick = null, due_at = null where name = 'one';
select sync_one('{"jitter": "24 hours"}'), (select state from sync_shown() where name = 'one');
select * from fetchq.schedules_sync('one', '[]');
select * from fetchq.schedules_sync('one', '[]');

-- What others have made is left alone, and not taken over: neither by the list nor by what is left out.
select was_created from fetchq.schedule_create('it''s by hand', 'rq_sync', '@daily');
select name, action from fetchq.schedules_sync('other', '[{"name": "of the other", "queue": "rq_sync", "schedule": "@daily"}]');
create temp table sync_rows as select to_jsonb(s) as row from fetchq.schedules s;
\pset format unaligned
\pset tuples_only on
create function sync_error(list text, owner text default 'shop') returns text language sql as $$
    select test.error(format('select * from fetchq.schedules_sync(%L, %L)', owner, list))
$$;
select sync_error(c) from unnest(array[
    '[{"name": "new", "queue": "rq_sync", "schedule": "@daily"}, {"name": "it''s by hand", "queue": "rq_sync", "schedule": "@daily"}]',
    '[{"name": "of the other", "queue": "rq_sync", "schedule": "@daily"}]']) c;
-- Elements that are not valid: the position, the name and the key.
select sync_error(c) from unnest(array[
    '{}', '7', 'null', '[7]', '[[]]', '[null]', '[{}]', '[{"name": "a", "queue": "rq_sync"}]', '[{"name": "a", "schedule": "@daily"}]', '[{"queue": "rq_sync", "schedule": "@daily"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "@daily"}, {"name": "a", "queue": "rq_sync2", "schedule": "@yearly"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "@daily", "replace": true}]', '[{"name": "a", "queue": "rq_sync", "cron": "@daily"}]',
    '[{"name": 7, "queue": "rq_sync", "schedule": "@daily"}]', '[{"name": "", "queue": "rq_sync", "schedule": "@daily"}]',
    '[{"name": "a\nb", "queue": "rq_sync", "schedule": "@daily"}]', format('[{"name": "%s", "queue": "rq_sync", "schedule": "@daily"}]', repeat('x', 235)),
    '[{"name": "a", "queue": "rq sync", "schedule": "@daily"}]', '[{"name": "a", "queue": "rq_nope", "schedule": "@daily"}]', '[{"name": "a", "queue": ["rq_sync"], "schedule": "@daily"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "soon"}]', '[{"name": "a", "queue": "rq_sync", "schedule": ""}]', '[{"name": "a", "queue": "rq_sync", "schedule": 5}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "0 0 30 2 *"}]', '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "ends_at": "2000-01-01"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "timezone": "Mars"}]', '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "catch_up": "never"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "catch_up_limit": 0}]', '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "version": "1"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "priority": 1.5}]', '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "priority": 2147483648}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "jitter": "-1 s"}]', '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "jitter": 5}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "jitter": "long"}]', '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "starts_at": "soon"}]',
    '[{"name": "a", "queue": "rq_sync", "schedule": "1 day", "headers": []}]']) c;
select sync_error('[]', o) from unnest(array['', E'a\nb', repeat('x', 201), null]) o;
select test.error('select fetchq.schedules_sync(''shop'', null)');
\pset tuples_only off
\pset format aligned
select count(*) from ((select to_jsonb(s) from fetchq.schedules s) except select row from sync_rows) x;
select count(*) from (select row from sync_rows except select to_jsonb(s) from fetchq.schedules s) x;
-- By hand, in the same transaction.
begin;
select fetchq.schedule_drop('it''s by hand');
select action from fetchq.schedules_sync('third', '[{"name": "it''s by hand", "queue": "rq_sync", "schedule": "@daily"}]');
rollback;
-- What is done by hand with a declared one: its owner stays, and the next call sets it again.
select was_created from fetchq.schedule_create('of the other', 'rq_sync', '@hourly', replace => true);
select name, owner, schedule from sync_shown() where name = 'of the other';
select fetchq.schedule_pause('of the other');
select * from fetchq.schedules_sync('other', '[{"name": "of the other", "queue": "rq_sync", "schedule": "@daily"}]');
select name, owner, schedule, state from sync_shown() where name = 'of the other';
select fetchq.schedule_drop('of the other');
select * from fetchq.schedules_sync('other', '[{"name": "of the other", "queue": "rq_sync", "schedule": "@daily"}]');

-- The longest name: its documents have the longest subject.
select length(name), action from fetchq.schedules_sync('long', jsonb_build_array(jsonb_build_object('name', repeat('é', 234), 'queue', 'rq_sync', 'schedule', '1 day', 'starts_at', '4999-12-30')));
select length(subject), was_created from fetchq.schedule_tick(repeat('é', 234));
select * from (select length(name), action from fetchq.schedules_sync('long', '[]')) x;

-- Rights: of the queues of all that is declared, kept or dropped; all or nothing.
create role rq_sync_role;
grant usage on schema fetchq, test to rq_sync_role;
grant execute on function sync_error(text, text) to rq_sync_role;
select fetchq.queue_grant('rq_sync', 'rq_sync_role', 'manager');
select * from fetchq.schedules_sync('mixed', '[{"name": "m1", "queue": "rq_sync", "schedule": "@daily"}, {"name": "m2", "queue": "rq_sync2", "schedule": "@daily"}]');
\pset format unaligned
\pset tuples_only on
set role rq_sync_role;
select sync_error(c, 'mixed') from unnest(array['[]', '[{"name": "m1", "queue": "rq_sync", "schedule": "@hourly"}]',
    '[{"name": "m1", "queue": "rq_sync", "schedule": "@daily"}, {"name": "m2", "queue": "rq_sync2", "schedule": "@daily"}]',
    '[{"name": "m1", "queue": "rq_sync", "schedule": "@daily"}, {"name": "m2", "queue": "rq_sync", "schedule": "@daily"}]']) c;
select sync_error(c, 'mine') from unnest(array['[{"name": "m2", "queue": "rq_sync", "schedule": "@hourly"}]', '[{"name": "m3", "queue": "rq_sync2", "schedule": "@hourly"}]',
    '[{"name": "m1", "queue": "rq_sync", "schedule": "@hourly"}]']) c;
reset role;
\pset tuples_only off
\pset format aligned
select name, owner, queue, schedule from sync_shown() where name like 'm_';
-- Declared by another role: it belongs to that role from now on, and ticks as before.
select * from fetchq.schedules_sync('both', '[{"name": "both", "queue": "rq_sync", "schedule": "@daily"}]');
set role rq_sync_role;
select * from fetchq.schedules_sync('both', '[{"name": "both", "queue": "rq_sync", "schedule": "@daily"}]');
select * from fetchq.schedules_sync('both', '[{"name": "both", "queue": "rq_sync", "schedule": "@daily"}]');
reset role;
select made_by from fetchq.schedules where name = 'both';
-- A queue that is dropped takes its schedules along.
set client_min_messages = warning;
select was_dropped from fetchq.queue_drop('rq_sync2');
reset client_min_messages;
select * from fetchq.schedules_sync('mixed', '[]');
select was_dropped from fetchq.queue_drop('rq_sync');
select count(*) from fetchq.schedules;
drop owned by rq_sync_role;
drop role rq_sync_role;
drop function sync_error(text, text), sync_one(jsonb), sync_shown();
drop table sync_before, sync_rows;
