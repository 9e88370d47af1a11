-- All settings of a queue as one JSON object.
select was_created from fetchq.queue_create('rq_conf');
select was_created from fetchq.queue_create('rq_conf_dead');
select jsonb_pretty(fetchq.queue_settings('rq_conf'));

-- What a call changes, and what it returns: all settings.
create function test.configure(settings jsonb, queue text default 'rq_conf') returns text language plpgsql as $$
declare
    before jsonb := fetchq.queue_settings(queue);
    after jsonb := fetchq.queue_configure(queue, settings);
    changed text;
begin
    select string_agg(a.key || ': ' || (before -> a.key) || ' to ' || a.value, ', ' order by a.key collate "C")
    into changed from jsonb_each(after) a where a.value <> before -> a.key;
    return coalesce(changed, 'nothing') || case when after <> fetchq.queue_settings(queue) then ' (wrong result)' else '' end;
end $$;

-- Each key is set, and null resets it.
select set, test.configure(set::jsonb) as was_set, reset, test.configure(reset::jsonb) as was_reset from unnest(array[
    '{"max_attempts": 3}', '{"max_attempts": 2147483647}',
    '{"retry": {"base": "30 s"}}', '{"retry": {"factor": 1.5}}', '{"retry": {"factor": 1000}}', '{"retry": {"max_delay": "1 month"}}', '{"retry": {"jitter": 0.25}}',
    '{"history": {"completed": "1 day"}}', '{"history": {"killed": "0"}}', '{"history": {"dropped": "1000 years"}}',
    '{"dead_letter": "RQ_conf_dead"}', '{"max_active": 3}', '{"rate": {"picks": 7}}', '{"rate": {"per": "1 hour"}}',
    '{"ordered": true}', '{"paused": true}', '{"notify": true}', '{"logs_retention": "7 days"}',
    '{"metrics_retention": [{"retain": "hour", "from": "1d", "to": "1h"}]}', '{"current_version": -3}', '{"lease": "90 s"}'
]) with ordinality s (set, n),
lateral (select regexp_replace(set, ': (\[.*\]|[^{}]*)(}+)$', ': null\2') as reset) r order by n;
select jsonb_pretty(fetchq.queue_settings('rq_conf')) = jsonb_pretty(fetchq.queue_settings('rq_conf_dead')) as all_reset;

-- Several keys, and all at once; what is not named stays. The result can be given back.
select test.configure('{"max_attempts": 3, "retry": {"base": "10 s"}}');
select test.configure('{"retry": {"jitter": 0.5}}');
select test.configure('{"retry": {"base": null}}');
select test.configure('{"retry": null}');
select test.configure('{}'), test.configure('{"retry": {}, "history": {}, "rate": {}}');
create view test.everything as select '{"max_attempts": 4, "retry": {"base": "1 s", "factor": 3, "max_delay": "1 min", "jitter": 0.1},
    "history": {"completed": "1 day", "killed": "2 days", "dropped": "3 days"}, "dead_letter": "rq_conf_dead", "max_active": 2,
    "rate": {"picks": 3, "per": "1 hour"}, "ordered": true, "paused": true, "notify": true, "logs_retention": "2 days",
    "metrics_retention": [{"to": "1h", "from": "1d", "retain": "hour"}], "current_version": 2, "lease": "30 s"}'::jsonb as settings;
select test.configure(settings) from test.everything;
select test.configure(settings), test.configure(fetchq.queue_settings('rq_conf')) from test.everything;
select is_active, current_version, max_attempts, logs_retention, metrics_retention, retry_base, retry_factor, retry_max_delay, retry_jitter, dead_letter,
    keep_completed, keep_killed, keep_dropped, max_active, rate_limit, rate_interval, is_ordered, lease_duration
from fetchq.queues where name = 'rq_conf';

-- The effects of the settings: slots, permits, triggers, the index of the order, the history.
create view test.effects as select
    (select count(*) from fetchq.lease_slots s where s.queue_id = q.id) as slots,
    (select count(*) from fetchq.rate_permits s where s.queue_id = q.id) as permits,
    (select string_agg(regexp_replace(tgname, '^fetchq_', ''), ' ' order by tgname) from pg_trigger t
     where t.tgrelid = to_regclass('fetchq_data.rq_conf__docs') and t.tgname <> 'fetchq_ready') as triggers,
    to_regclass('fetchq_data.rq_conf__docs_blocked_idx') is not null as has_index,
    to_regclass('fetchq_data.rq_conf__history') is not null as has_history
from fetchq.queues q where q.name = 'rq_conf';
select * from test.effects;
select test.configure('{"max_active": null, "rate": null, "ordered": false, "notify": null, "paused": false, "dead_letter": null}');
select * from test.effects;
-- With documents in it.
select fetchq.doc_put('rq_conf', s, ordering_key => 'k', version => 2) from unnest('{a,b,c}'::text[]) s;
select count(*) from fetchq.doc_pick('rq_conf', 2, 2, '1 hour');
select test.configure('{"max_active": 1, "ordered": true}');
select slot < 1099511627776 as is_within_cap, subject from fetchq.lease_slots order by slot;
select subject, status, lock_upgrade is not null as is_blocked from fetchq_data.rq_conf__docs order by seq;
select test.configure('{"max_active": 5, "rate": {"picks": 1, "per": "1 hour"}}');
select * from test.effects;
-- Nothing is done where nothing changes: the documents are not locked.
begin;
select test.configure('{"max_active": 5, "rate": {"picks": 1, "per": "60 min"}, "ordered": true, "notify": false}');
select mode from pg_locks where pid = pg_backend_pid() and relation = 'fetchq_data.rq_conf__docs'::regclass and mode not in ('AccessShareLock', 'RowShareLock');
rollback;
select fetchq.queue_truncate('rq_conf');
select test.configure('{"max_active": null, "rate": null, "ordered": null}');

-- Bad values: the error names the key, the value and the rule, and nothing is changed.
create view test.bad as select * from unnest(array[
    '{"max_attempts": 0}', '{"max_attempts": -1}', '{"max_attempts": 2147483648}', '{"max_attempts": 1.5}', '{"max_attempts": "3"}', '{"max_attempts": true}', '{"max_attempts": {}}',
    '{"max_attempts": 1e400}', '{"max_attempts": 99999999999999999999999}',
    '{"retry": 3}', '{"retry": "10 s"}', '{"retry": []}', '{"retry": {"base": 30}}', '{"retry": {"base": "soon"}}', '{"retry": {"base": "-1 s"}}', '{"retry": {"base": "infinity"}}',
    '{"retry": {"base": ""}}', '{"retry": {"base": "1001 years"}}', '{"retry": {"base": "1 mon -31 days"}}', '{"retry": {"factor": 0.99}}', '{"retry": {"factor": 1000.1}}', '{"retry": {"factor": "NaN"}}',
    '{"retry": {"max_delay": "-1"}}', '{"retry": {"jitter": -0.1}}', '{"retry": {"jitter": 1.1}}', '{"retry": {"jitter": "0.1"}}',
    '{"history": "1 day"}', '{"history": {"completed": "-1 day"}}', '{"history": {"killed": 0}}', '{"history": {"dropped": false}}',
    '{"dead_letter": "no queue"}', '{"dead_letter": ""}', '{"dead_letter": 1}', '{"dead_letter": "rq_conf"}', '{"dead_letter": "rq_nope"}',
    '{"max_active": 0}', '{"max_active": 100001}', '{"max_active": 2.5}', '{"rate": 5}', '{"rate": {"picks": 0}}', '{"rate": {"picks": 100001}}',
    '{"rate": {"per": "0"}}', '{"rate": {"per": "-1 s"}}', '{"rate": {"per": 1}}', '{"ordered": 1}', '{"ordered": "on"}', '{"paused": "true"}', '{"notify": 0}', '{"notify": []}',
    '{"logs_retention": 7}', '{"logs_retention": "a week"}', '{"logs_retention": "-1 day"}', '{"metrics_retention": {}}', '{"metrics_retention": "[]"}', '{"metrics_retention": [1]}',
    '{"metrics_retention": [{"retain": "hour"}]}', '{"metrics_retention": [{"retain": "eon", "from": "1h", "to": "0s"}]}', '{"metrics_retention": [{"retain": "hour", "from": "long", "to": "0s"}]}',
    '{"metrics_retention": [{"retain": "hour", "from": "1h", "to": "-1h"}]}', '{"current_version": 2147483648}', '{"current_version": "0"}',
    '{"lease": "0"}', '{"lease": 300}', '{"lease": "-5 min"}',
    -- Keys that do not exist.
    '{"max_atempts": 3}', '{"": 3}', '{"MAX_ATTEMPTS": 3}', '{"retry.base": "1 s"}', '{"retry": {"bse": "1 s"}}', '{"retry": {"base.x": "1 s"}}', '{"rate": {"per": "1 s", "limit": 3}}',
    '{"max_active_per_queue": 1}', '{"is_active": true}', '{"id": 3}', '{"name": "other"}',
    -- No object.
    '[]', '[{"max_attempts": 3}]', '"max_attempts"', '3', 'null', 'true'
]) with ordinality b (settings, n);
select settings, regexp_replace(test.error(format('select fetchq.queue_configure(''rq_conf'', %L)', settings)), ' \| .*', '') as error from test.bad order by n;
-- The hints.
select test.error($$select fetchq.queue_configure('rq_conf', '{"max_attempts": 0}')$$);
select test.error($$select fetchq.queue_configure('rq_conf', '{"retry": {"bse": "1 s"}}')$$);
select test.error($$select fetchq.queue_configure('rq_conf', '[]')$$);
-- One bad key among good ones, in whatever order they are looked at.
select test.error(format('select fetchq.queue_configure(''rq_conf'', %L)', settings || bad)) <> 'no error' as refused, bad
from test.everything, unnest(array['{"zzz": 1}', '{"aaa": 1}', '{"lease": "0"}', '{"dead_letter": "rq_conf"}', '{"dead_letter": "rq_nope"}']::jsonb[]) bad;
select jsonb_pretty(fetchq.queue_settings('rq_conf'));
select * from test.effects;
-- Megabytes of JSON: the error shows the beginning.
select length(test.error(format('select fetchq.queue_configure(''rq_conf'', %L)', j))) < 700 as is_short, left(test.error(format('select fetchq.queue_configure(''rq_conf'', %L)', j)), 60) as error
from unnest(array[
    jsonb_build_object('lease', repeat('ü', 1000000)), jsonb_build_object(repeat('x', 1000000), 1), to_jsonb(array_fill(1, array[300000])),
    (repeat('[', 5000) || repeat(']', 5000))::jsonb, jsonb_build_object('metrics_retention', (repeat('[', 5000) || repeat(']', 5000))::jsonb),
    jsonb_build_object('retry', repeat('x', 1000000)), (select jsonb_object_agg('k' || i, i) from generate_series(1, 100000) i)]) j;
-- NULL, and queues that do not exist.
select test.error($$select fetchq.queue_configure('rq_conf', null)$$);
select test.error($$select fetchq.queue_configure(null, '{}')$$);
select test.error($$select fetchq.queue_settings(null)$$);
select test.error($$select fetchq.queue_configure('rq_nope', '{}')$$);
select test.error($$select fetchq.queue_configure('rq_nope', '{"max_attempts": 3}')$$);
select test.error($$select fetchq.queue_settings('rq_nope')$$);
set fetchq.compat = '4.2.0';
select test.error($$select fetchq.queue_configure('rq_nope', '{"max_attempts": 3}')$$);
reset fetchq.compat;

-- A rollback undoes all of it.
begin;
select count(fetchq.queue_configure('rq_conf', settings)) from test.everything;
rollback;
begin;
savepoint s;
select count(fetchq.queue_configure('rq_conf', settings)) from test.everything;
rollback to savepoint s;
select test.configure('{"lease": "1 min"}');
commit;
select jsonb_pretty(fetchq.queue_settings('rq_conf'));
select * from test.effects;

-- Limits and order need a snapshot of now; the other settings do not.
begin isolation level repeatable read;
select 1;
select test.configure('{"max_attempts": 6, "lease": null}');
select test.error($$select fetchq.queue_configure('rq_conf', '{"max_active": 1}')$$);
select test.error($$select fetchq.queue_configure('rq_conf', '{"rate": {"picks": 1}}')$$);
select test.error($$select fetchq.queue_configure('rq_conf', '{"ordered": null}')$$);
rollback;
begin read only;
select test.error($$select fetchq.queue_configure('rq_conf', '{}')$$);
select fetchq.queue_settings('rq_conf') ->> 'lease' as lease;
commit;
-- The text of intervals does not depend on the session.
set intervalstyle = iso_8601;
set datestyle = german;
set extra_float_digits = -3;
select test.configure('{"lease": "PT2M", "retry": {"factor": 1.23456789}}');
reset intervalstyle;
reset datestyle;
reset extra_float_digits;
select test.configure('{"lease": null, "retry": null}');
-- Changes by hand are seen, whatever is in them.
update fetchq.queues set logs_retention = 'whenever', metrics_retention = null, retry_factor = 'NaN', max_attempts = 0 where name = 'rq_conf';
select fetchq.queue_settings('rq_conf');
select test.configure('{"logs_retention": null, "metrics_retention": null, "retry": null, "max_attempts": null}');

-- The settings that fetchq 4 has functions for, and the others, are the same ones.
select * from fetchq.queue_set_max_attempts('rq_conf', 9);
select fetchq.queue_set_logs_retention('rq_conf', '3h'), fetchq.queue_pause('rq_conf'), fetchq.queue_enable_notify('rq_conf');
select s -> 'max_attempts' as max_attempts, s -> 'logs_retention' as logs_retention, s -> 'paused' as paused, s -> 'notify' as notify from fetchq.queue_settings('rq_conf') s;
select was_dropped from fetchq.queue_drop('rq_conf');

-- Creating a queue with settings.
select was_created from fetchq.queue_create('rq_conf', '{"max_attempts": 2, "retry": {"base": "5 s"}, "max_active": 3, "ordered": true, "history": {"killed": "1 day"}, "notify": true}');
select fetchq.queue_settings('rq_conf');
select * from test.effects;
-- An existing one keeps its own, and a notice says which ones differ.
select was_created from fetchq.queue_create('rq_conf');
select was_created from fetchq.queue_create('rq_conf', null);
select was_created from fetchq.queue_create('rq_conf', '{}');
select was_created from fetchq.queue_create('rq_conf', '{"max_attempts": 2, "retry": {"base": "00:00:05"}, "notify": true}');
select was_created from fetchq.queue_create('rq_conf', '{"max_attempts": 3, "retry": {"base": "6 s", "factor": 2}, "notify": false, "max_active": null}');
select test.error($$select fetchq.queue_create('rq_conf', '{"max_atempts": 3}')$$) ~ 'max_atempts' as checked_though_it_exists;
select fetchq.queue_settings('rq_conf') -> 'max_attempts' as max_attempts;
-- An error leaves no queue behind.
select test.error($$select fetchq.queue_create('rq_conf_2', '{"max_attempts": 0}')$$);
select test.error($$select fetchq.queue_create('rq_conf_2', '{"dead_letter": "rq_nope"}')$$);
select test.error($$select fetchq.queue_create('rq_conf_2', '{"dead_letter": "rq_conf_2"}')$$);
select test.error($$select fetchq.queue_create('rq_conf_2', '[]')$$);
select count(*) from fetchq.queues where name = 'rq_conf_2';
-- Also where the transaction keeps an older snapshot.
begin isolation level serializable;
select was_created from fetchq.queue_create('rq_conf_2', '{"max_active": 1, "rate": {"picks": 5}, "ordered": true, "dead_letter": "rq_conf_dead"}');
select fetchq.doc_push('rq_conf_2', s) from unnest('{a,b}'::text[]) s;
select subject from fetchq.doc_pick('rq_conf_2', 9);
commit;
select was_dropped from fetchq.queue_drop('rq_conf_2');

-- A role without rights.
create role regress_fetchq_conf;
grant usage on schema fetchq, fetchq_data, test to regress_fetchq_conf;
grant execute on function fetchq.queue_create to regress_fetchq_conf;
set role regress_fetchq_conf;
select was_created from fetchq.queue_create('rq_conf_2');
-- A role without rights on a queue learns nothing about it.
select was_created from fetchq.queue_create('rq_conf', '{"max_attempts": 2}');
select test.error($$select fetchq.queue_settings('rq_conf')$$);
select test.error($$select fetchq.queue_configure('rq_conf', '{"nope": 1}')$$);
reset role;
-- Who may read and change settings.
select fetchq.queue_grant('rq_conf', 'regress_fetchq_conf', k) from unnest('{reader,producer}'::text[]) k;
set role regress_fetchq_conf;
select fetchq.queue_settings('rq_conf') -> 'max_attempts' as reader;
select test.error($$select fetchq.queue_configure('rq_conf', '{"max_attempts": 1}')$$);
select test.error($$select fetchq.queue_configure('rq_conf', '{}')$$);
select was_created from fetchq.queue_create('rq_conf', '{"max_attempts": 3}');
reset role;
select fetchq.queue_grant('rq_conf', 'regress_fetchq_conf', 'worker');
set role regress_fetchq_conf;
select test.error($$select fetchq.queue_configure('rq_conf', '{"max_attempts": 1}')$$);
reset role;
select fetchq.queue_grant('rq_conf', 'regress_fetchq_conf', 'manager');
set role regress_fetchq_conf;
select fetchq.queue_configure('rq_conf', '{"max_attempts": 1, "max_active": 3, "ordered": false, "notify": false, "history": {"completed": "1 day"}}') -> 'max_attempts' as manager;
select test.error($$select fetchq.queue_configure('rq_conf', '{"dead_letter": "rq_conf_dead"}')$$);
select was_dropped from fetchq.queue_drop('rq_conf_2');
reset role;
select was_dropped from fetchq.queue_drop('rq_conf');
select was_dropped from fetchq.queue_drop('rq_conf_dead');
drop owned by regress_fetchq_conf;
drop role regress_fetchq_conf;
drop view test.effects, test.bad, test.everything;
drop function test.configure(jsonb, text);
