-- What new queues start with: the defaults of fetchq, those of the site, and what queue_create names.
create function test.settings(queue text) returns text language sql as $$
    select string_agg(key || ' ' || value, ', ' order by key) from jsonb_each(jsonb_strip_nulls(fetchq.queue_settings($1)))
    where key not in ('current_version', 'metrics_retention', 'notify', 'ordered', 'paused', 'rate')
$$;
create function test.settings_of_new(settings jsonb default null) returns text language plpgsql as $$
declare
    shown text;
begin
    perform fetchq.queue_create('rq_new', settings);
    shown := test.settings('rq_new');
    perform fetchq.queue_drop('rq_new');
    return shown;
end $$;
-- This suite runs without defaults.
show fetchq.queue_defaults;
select test.settings_of_new();
-- Those of fetchq.
set fetchq.queue_defaults = '';
select was_created from fetchq.queue_create('rq_def');
select jsonb_pretty(fetchq.queue_settings('rq_def'));
-- The call goes before, key by key; null switches one off.
select settings, test.settings_of_new(settings) from unnest(array[
    '{"max_attempts": 3}', '{"retry": {"base": "1 min"}}', '{"history": {"completed": "1 hour"}}', '{"lease": "30 s", "logs_retention": "1 day"}',
    '{"max_active": 2, "dead_letter": "rq_def"}', '{"retry": null}', '{"history": {"killed": null}}', '{"history": null}', '{"max_attempts": null, "lease": null, "logs_retention": null}']::jsonb[]) settings;
-- A client of fetchq 4 gets queues as fetchq 4 made them.
set fetchq.compat = '4.2.0';
select test.settings_of_new();
set fetchq.compat = '4.1.1';
select test.settings_of_new('{"max_attempts": 9}');
set fetchq.queue_defaults = '{"max_attempts": 7}';
select test.settings_of_new();
reset fetchq.compat;
-- Those of the site stand in place of those of fetchq.
set fetchq.queue_defaults = '{"max_attempts": 7, "retry": {"base": "1 min", "jitter": 0.5}, "max_active": 4}';
select test.settings_of_new();
select test.settings_of_new('{"max_attempts": 8, "retry": {"base": null}, "max_active": null}');
-- A later change changes no queue that exists, and queue_create keeps its settings.
select test.settings('rq_def');
select was_created from fetchq.queue_create('rq_def');
select test.settings('rq_def');
-- The dead-letter queue of all others has none itself, and must exist before them.
set fetchq.queue_defaults = '{"dead_letter": "rq_def_dead"}';
select test.error($$select fetchq.queue_create('rq_new')$$);
select was_created from fetchq.queue_create('rq_def_dead');
select test.settings('rq_def_dead');
select test.settings_of_new(), test.settings_of_new('{"dead_letter": null}');
-- Who creates a queue needs the right to push there, and may say otherwise.
create role regress_fetchq_def;
grant usage on schema fetchq, fetchq_data, test to regress_fetchq_def;
grant execute on function fetchq.queue_create to regress_fetchq_def;
set role regress_fetchq_def;
select test.error($$select fetchq.queue_create('rq_new')$$);
select test.settings_of_new('{"dead_letter": null}');
-- Only a superuser sets it: it acts in queue_create of whoever creates a queue, also in a function with the rights of
-- its owner that another role calls.
select test.error($$set fetchq.queue_defaults = '{"max_attempts": 2}'$$);
select test.error($$select set_config('fetchq.queue_defaults', '{"max_attempts": 2}', false)$$);
select test.error($$alter role regress_fetchq_def set fetchq.queue_defaults = '{"max_attempts": 2}'$$);
reset role;
drop owned by regress_fetchq_def;
drop role regress_fetchq_def;
-- What is not valid fails where a queue is to be created, and only there.
create table test.bad_defaults (n int generated always as identity, defaults text);
insert into test.bad_defaults (defaults) values ('x'), ('[]'), ('{"max_atempts": 3}'), ('{"max_attempts": 0}'), ('{"lease": "soon"}'), ('{"dead_letter": "rq_nope"}'), (' '), ('{"retry": {"base": "1 s"}, "retry": 7}');
select defaults, set_config('fetchq.queue_defaults', defaults, false) is not null as is_set, test.error($$select fetchq.queue_create('rq_new')$$) from test.bad_defaults order by n;
select was_created from fetchq.queue_create('rq_def');
select count(*) from fetchq.queues where name = 'rq_new';

-- With the defaults of fetchq, the first failure is retried after some seconds, and what is settled goes to
-- the history.
set fetchq.queue_defaults = '';
select fetchq.doc_put('rq_def', s) from unnest('{a,b,c}'::text[]) s;
select subject, lease_ends - picked_at as duration, max_attempts from fetchq.doc_lease('rq_def', 3) order by 1;
select fetchq.doc_reject('rq_def', 'a', 'no', lease => test.lease_of('rq_def', 'a')), fetchq.doc_complete('rq_def', 'b', lease => test.lease_of('rq_def', 'b')), fetchq.doc_kill('rq_def', 'c', lease => test.lease_of('rq_def', 'c'));
select subject, status, next_iteration - last_iteration between interval '4 s' and interval '6 s' as within_seconds from fetchq_data.rq_def__docs;
select subject, outcome from fetchq.queue_history('rq_def') order by 1;
-- Both subjects are free, and the history ends by itself.
select fetchq.doc_put('rq_def', 'b');
update fetchq_data.rq_def__history set settled_at = now() - interval '6 days 23 hours';
select fetchq.queue_trim_history('rq_def');
update fetchq_data.rq_def__history set settled_at = now() - interval '7 days 1 hour';
select fetchq.queue_trim_history('rq_def');
select subject, outcome from fetchq.queue_history('rq_def') order by 1;
update fetchq_data.rq_def__history set settled_at = now() - interval '31 days';
select fetchq.queue_trim_history('rq_def');
-- The delays of all attempts: they grow up to six hours, and take three days together.
select * from (
    select attempt, delay, sum(delay) over (order by attempt) as together
    from generate_series(1, 24) attempt, least(interval '5 s' * 2 ^ (attempt - 1), interval '6 hours') delay) a
where attempt in (1, 2, 5, 10, 13, 14, 24);
select test.exact('rq_def');
reset fetchq.queue_defaults;
select was_dropped from fetchq.queue_drop('rq_def');
select was_dropped from fetchq.queue_drop('rq_def_dead');
drop table test.bad_defaults;
drop function test.settings_of_new(jsonb);
drop function test.settings(text);
