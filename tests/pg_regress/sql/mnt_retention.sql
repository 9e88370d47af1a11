-- Retention of logs and snapshots.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_keep');
create function test.fill() returns void language sql as $$
    truncate fetchq_data.rq_keep__logs;
    insert into fetchq_data.rq_keep__logs (created_at, subject, message)
    select now() - a::interval, 's', a from unnest(array['3 days', '25 hours', '2 hours', '0 hours']) a;
$$;
create view test.logs as select message from fetchq_data.rq_keep__logs order by id;

-- With the queue's own retention; the default is 24 hours.
select test.fill();
select * from fetchq.queue_drop_logs('rq_keep');
select * from test.logs;
select fetchq.queue_set_logs_retention('rq_keep', '1h');
select * from fetchq.queue_drop_logs('rq_keep');
select * from test.logs;
select fetchq.queue_set_logs_retention('rq_keep', '24h');

-- With an interval, and with a time.
select test.fill();
select * from fetchq.queue_drop_logs('rq_keep', '2 days');
select * from test.logs;
select * from fetchq.queue_drop_logs('rq_keep', now() - interval '90 minutes');
select * from test.logs;
select * from fetchq.queue_drop_logs('rq_keep', timestamptz '-infinity');
select test.error($$select fetchq.queue_drop_logs('rq_keep', 'soon')$$);
select test.error($$select fetchq.queue_drop_logs('rq_keep', '-1 hour')$$);
select * from test.logs;
select * from fetchq.queue_drop_logs('rq_nope');
select * from fetchq.queue_drop_logs('rq_nope', '1h');
select * from fetchq.queue_drop_logs('rq_nope', now());

-- Snapshots: between the two ends of each rule, the newest of each metric and unit stays.
create table test.base as select date_trunc('hour', now()) - interval '5 hours' as at;
create function test.snaps() returns void language sql as $$
    truncate fetchq_data.rq_keep__metrics restart identity;
    insert into fetchq_data.rq_keep__metrics (created_at, metric, value)
    select b.at + m.at::interval, m.metric, m.value from test.base b, (values
        (1, '-30 days', 'cnt', 1), (2, '-29 days -23 hours -59 minutes', 'cnt', 2),
        (3, '1 minute', 'cnt', 3), (4, '2 minutes', 'cnt', 4), (5, '2 minutes', 'ent', 5), (6, '3 minutes', 'cnt', 6), (7, '3 minutes', 'cnt', 7),
        (8, '61 minutes', 'cnt', 8), (9, '62 minutes', 'ent', 9), (10, '119 minutes', 'ent', 10),
        (11, '5 hours', 'cnt', 11)
    ) m (n, at, metric, value) order by m.n;
$$;
create view test.kept as select value, metric from fetchq_data.rq_keep__metrics order by id;
select test.snaps();
select * from fetchq.queue_drop_metrics('rq_keep');
select * from fetchq.queue_drop_metrics('rq_keep', '[{"retain": "hour", "from": "10h", "to": "2h"}]');
select * from test.kept;
select * from fetchq.queue_drop_metrics('rq_keep', '[{"retain": "hour", "from": "10h", "to": "2h"}]');

-- Several rules, and the queue's own policy.
select test.snaps();
select fetchq.queue_set_metrics_retention('rq_keep', '[{"retain": "minute", "from": "10h", "to": "2h"}, {"retain": "millennium", "from": "60 days", "to": "10 days"}]');
select * from fetchq.queue_drop_metrics('rq_keep');
select * from test.kept;
select * from fetchq.queue_drop_metrics('rq_keep', '[]');
select * from fetchq.queue_drop_metrics('rq_keep', '[{"retain": "hour", "from": "2h", "to": "10h"}]');
select test.error($$select fetchq.queue_drop_metrics('rq_keep', '{}')$$);
select test.error($$select fetchq.queue_drop_metrics('rq_keep', '[{"retain": "eon", "from": "2h", "to": "1h"}]')$$);
select test.error($$select fetchq.queue_drop_metrics('rq_keep', '[{"retain": "hour", "from": "far", "to": "1h"}]')$$);
select * from fetchq.queue_drop_metrics('rq_nope');
select * from fetchq.queue_drop_metrics('rq_nope', '[]');

-- The job does both.
select test.fill();
select test.snaps();
update fetchq.jobs set next_iteration = case when queue = 'rq_keep' and task = 'drp' then timestamptz '2020-01-01' else '2970-01-01' end;
select * from fetchq.mnt_job_run(10);
select * from test.logs;
select * from test.kept;

-- Any table: the newest row of each unit between two times stays; every identifier is quoted.
create schema "rq ""s""; drop table x; --";
create table "rq ""s""; drop table x; --"."T ""q""; --" ("at ""x""; --" timestamptz, n int);
insert into "rq ""s""; drop table x; --"."T ""q""; --" values
    ('2020-01-01 00:10', 1), ('2020-01-01 00:50', 2), ('2020-01-01 00:50', 3), ('2020-01-01 01:10', 4), ('2020-01-02 00:00', 5), ('2020-01-02 00:01', 6), (null, 7);
select * from fetchq.utils_ts_retain('"rq ""s""; drop table x; --"."T ""q""; --"', 'at "x"; --', 'hour', '2020-01-01', '2020-01-01 23:59');
select n from "rq ""s""; drop table x; --"."T ""q""; --" order by n;
select * from fetchq.utils_ts_retain('"rq ""s""; drop table x; --"."T ""q""; --"', 'at "x"; --', 'DAY', '-infinity', 'infinity');
select n from "rq ""s""; drop table x; --"."T ""q""; --" order by n;
select test.error($$select fetchq.utils_ts_retain('"rq ""s""; drop table x; --"."T ""q""; --"', 'n; drop table x', 'hour', '2020-01-01', '2020-01-02')$$);
select test.error($$select fetchq.utils_ts_retain('pg_class; drop table x', 'at', 'hour', '2020-01-01', '2020-01-02')$$);
select test.error($$select fetchq.utils_ts_retain('fetchq_data.rq_nope__metrics', 'created_at', 'hour', '2020-01-01', '2020-01-02')$$);
select test.error($$select fetchq.utils_ts_retain('fetchq_data.rq_keep__metrics', 'created_at', 'hour''); drop table x; --', '2020-01-01', '2020-01-02')$$);
drop table "rq ""s""; drop table x; --"."T ""q""; --";
drop schema "rq ""s""; drop table x; --";
drop view test.kept, test.logs;
drop function test.snaps(), test.fill();
drop table test.base;
update fetchq.jobs set next_iteration = now();
select was_dropped from fetchq.queue_drop('rq_keep');
