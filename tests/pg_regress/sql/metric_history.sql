-- The snapshots of metrics by time, for charts.
select was_created from fetchq.queue_create('rq_chart');
insert into fetchq_data.rq_chart__metrics (created_at, metric, value)
select '2026-01-01 00:00:10.000001+00'::timestamptz + i * interval '5 minutes', m.metric, m.value * i
from generate_series(0, 11) i, (values ('ent', 10), ('pnd', 1)) m (metric, value);
create function test.utc(t timestamptz) returns text language sql as $$ select to_char(t at time zone 'UTC', 'MM-DD HH24:MI:SS.US') $$;

-- All of them, with a bound of time, and of some metrics.
select test.utc(at), metric, value from fetchq.metric_history('rq_chart', '2026-01-01 00:00+00', '2026-01-01 00:12+00');
select test.utc(at), metric, value from fetchq.metric_history('rq_chart', '2026-01-01 00:40+00', metrics => '{pnd,nope}');
-- The beginning belongs to the time, the end does not.
select count(*) from fetchq.metric_history('rq_chart', '2026-01-01 00:00:10.000001+00', '2026-01-01 00:05:10.000001+00');
-- The last value of each step, at the beginning of the step.
select test.utc(at), metric, value from fetchq.metric_history('rq_chart', '2026-01-01 00:00+00', '2026-01-01 01:00+00', '15 minutes');
select test.utc(at), value from fetchq.metric_history('rq_chart', '-infinity', 'infinity', '1 day', '{ent}');
select test.utc(at), value from fetchq.metric_history('rq_chart', '2026-01-01 00:00+00', null, '7 minutes', '{ent}') limit 4;
select count(*) from fetchq.metric_history('rq_chart', '-infinity', step => '1 microsecond');
select count(*) from fetchq.metric_history('rq_chart', '-infinity', step => '1 month');
-- Two snapshots of one step: the later one, and of one moment: the one that was written last.
insert into fetchq_data.rq_chart__metrics (created_at, metric, value) values
    ('2027-01-01 00:00+00', 'two', 1), ('2027-01-01 00:01+00', 'two', 2), ('2027-01-01 00:01+00', 'two', 3), ('infinity', 'two', 4), ('1990-01-01', 'two', 5);
select test.utc(at), value from fetchq.metric_history('rq_chart', '2027-01-01 00:00+00', step => '1 hour', metrics => '{two}');
select count(*) from fetchq.metric_history('rq_chart', '-infinity', metrics => '{two}');
select count(*) from fetchq.metric_history('rq_chart', '2027-01-01', '2026-01-01');
-- Without a time: the last day. metric_snap() and the job sts take the snapshots.
delete from fetchq_data.rq_chart__metrics where created_at > '2026-06-01';
insert into fetchq_data.rq_chart__metrics (created_at, metric, value) values (now() - interval '25 hours', 'pnd', 1), (now() - interval '23 hours', 'pnd', 2);
select fetchq.doc_push('rq_chart', 'd');
select success from fetchq.metric_snap('rq_chart', 'pnd');
select metric, value from fetchq.metric_history('rq_chart', metrics => '{pnd}');
select metric, value from fetchq.metric_history('rq_chart', until => now() - interval '24 hours', metrics => '{pnd}');
select metric, value from fetchq.metric_history('rq_chart', until => 'infinity', metrics => '{pnd}');
select count(*) from fetchq.metric_history('rq_chart', null, null, null, null);
-- What is wrong is named.
select test.error(c) from unnest(array[
    $$select fetchq.metric_history('rq_nope')$$, $$select fetchq.metric_history(null)$$, $$select fetchq.metric_history('rq_chart', step => '0')$$,
    $$select fetchq.metric_history('rq_chart', step => '-1 hour')$$, $$select fetchq.metric_history('rq_chart', step => '1 mon -31 days')$$,
    $$select fetchq.metric_history('rq_chart', step => '178000000 years')$$, $$select fetchq.metric_history('rq_chart', metrics => '{ent,null}')$$,
    $$select fetchq.metric_history('rq_chart', metrics => '{{ent},{pnd}}')$$,
    $$select fetchq.metric_history('rq_chart', metrics => array[repeat('m', 41)])$$, $$select fetchq.metric_history('rq_chart', metrics => array[''])$$]) c;
select count(*) from fetchq.metric_history('rq_chart', metrics => array(select 'm' || i from generate_series(1, 10000) i));
select count(*) from fetchq.metric_history('rq_chart', metrics => '{}');
-- Who may read them.
create role rq_chart_reader;
create role rq_chart_producer;
select fetchq.queue_grant('rq_chart', 'rq_chart_reader', 'reader'), fetchq.queue_grant('rq_chart', 'rq_chart_producer', 'producer');
grant usage on schema test to public;
grant execute on function test.error(text) to public;
begin read only;
set local role rq_chart_reader;
select count(*) from fetchq.metric_history('rq_chart', '2026-01-01', '2026-02-01');
rollback;
set role rq_chart_producer;
select test.error($$select fetchq.metric_history('rq_chart')$$);
reset role;
select was_dropped from fetchq.queue_drop('rq_chart');
drop function test.utc(timestamptz);
drop owned by rq_chart_reader, rq_chart_producer;
drop role rq_chart_reader, rq_chart_producer;
