-- Histograms: how long documents waited, and how long they ran.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_time');
create view test.timings as
select kind, sum(n) as documents, bool_and(b between 0 and 141) as are_buckets
from (
    select t.kind, u.b, u.n from fetchq.timings t, unnest(t.buckets, t.counts) u (b, n)
    where t.queue_id = fetchq.queue_get_id('rq_time')
    union all
    select case when e.event in (3, 18) then 'wait' else 'run' end, e.bucket, e.n
    from fetchq.counter_tail e where e.queue_id = fetchq.queue_get_id('rq_time') and e.bucket is not null) x
group by kind order by kind;
create view test.totals as
select string_agg(metric || ' ' || current_value, ', ' order by metric) as totals
from fetchq.metric_get('rq_time') where metric in ('ent', 'pkd', 'suc', 'fai', 'orp', 'prc', 'drp');

-- A row with a bucket is as long as one without.
begin;
select fetchq.doc_push('rq_time', 's' || i, 0, 0, '2020-01-01', '{}') from generate_series(1, 12) i limit 1;
select count(*) from fetchq.doc_pick('rq_time', 0, 1, '1h');
select event, bucket, pg_column_size(l.*) from fetchq.counter_log l where queue_id = fetchq.queue_get_id('rq_time') order by event;
rollback;
select * from test.timings;

-- Every way to pick and to settle, with statements and without.
create function test.settle_all() returns setof text language plpgsql as $$
begin
    perform fetchq.doc_push('rq_time', s, 3, 0, now() - '5 minutes'::interval, '{}')
        from unnest('{complete,kill,drop,reject,reschedule,snooze,many-1,many-2,with-1,drop-1,drop-2,later-1,expire,cancel}'::text[]) s;
    perform fetchq.doc_pick('rq_time', 3, 1, '1h');
    perform fetchq.doc_pick('rq_time', 3, 100, '1h');
    perform fetchq.doc_push('rq_time', 'pop', 3, 0, now(), '{}');
    perform fetchq.doc_pop('rq_time', 3, 1);
    perform fetchq.doc_complete('rq_time', 'complete');
    perform fetchq.doc_kill('rq_time', 'kill');
    perform fetchq.doc_drop('rq_time', 'drop');
    perform fetchq.doc_reject('rq_time', 'reject', 'no', '{}');
    perform fetchq.doc_reschedule('rq_time', 'reschedule', now() + '1 hour'::interval);
    perform fetchq.doc_snooze('rq_time', 'snooze', now() + '1 hour'::interval);
    perform fetchq.doc_complete_many('rq_time', '{many-1,many-2,nobody}');
    perform fetchq.doc_complete_many('rq_time', '{with-1}', array['{}']::jsonb[]);
    perform fetchq.doc_drop_many('rq_time', '{drop-1,drop-2}');
    perform fetchq.doc_reschedule_many('rq_time', '{later-1}', now() + '1 hour'::interval);
    perform fetchq.doc_cancel('rq_time', 'cancel');
    update fetchq_data.rq_time__docs set next_iteration = now() - interval '1 minute' where subject = 'expire';
    perform fetchq.mnt_run('rq_time', 10);
    return next (select string_agg(kind || ' ' || documents, ', ') from test.timings);
    return next (select totals from test.totals);
end $$;
begin;
select test.settle_all();
rollback;
begin;
set local fetchq.direct = off;
select test.settle_all();
rollback;
begin;
select from fetchq.queue_configure('rq_time', '{"history": {"completed": "1h", "killed": "1h", "dropped": "1h"}}');
select test.settle_all();
rollback;
begin;
select from fetchq.queue_configure('rq_time', '{"history": {"completed": "0", "killed": "0", "dropped": "0"}}');
select test.settle_all();
rollback;
select was_created from fetchq.queue_create('rq_time_dead');
begin;
select from fetchq.queue_configure('rq_time', '{"dead_letter": "rq_time_dead"}');
select test.settle_all();
rollback;
begin;
select from fetchq.queue_configure('rq_time', '{"max_active": 50}');
select test.settle_all();
rollback;
begin isolation level repeatable read;
select test.settle_all();
rollback;

-- A document that was made active by plain SQL has no run.
select fetchq.doc_push('rq_time', 'plain', 0, 0, '2020-01-01', '{}');
update fetchq_data.rq_time__docs set status = 2;
select fetchq.doc_complete('rq_time', 'plain');
select * from test.timings;

-- A batch with documents of many ages writes a few rows.
select count(*) from (
    select fetchq.doc_push('rq_time', 'age-' || i, 0, 0, now() - '1 ms'::interval * (2 ^ (i / 4.0)), '{}') from generate_series(1, 100) i) p;
begin;
select count(*) from fetchq.doc_pick('rq_time', 0, 100, '1h');
select count(*) <= 8 as are_few, sum(coalesce(n, 1)) from fetchq.counter_log
where queue_id = fetchq.queue_get_id('rq_time') and event = 3 and bucket is not null;
commit;
select * from test.timings;

-- The pack moves them; an older minute in its slot goes to the total.
select fetchq.metric_log_pack() > 0 as packed;
select * from test.timings;
delete from fetchq.timings where queue_id = fetchq.queue_get_id('rq_time');
insert into fetchq.timings (queue_id, kind, slot, minute, buckets, counts)
select fetchq.queue_get_id('rq_time'), 'run', s, '2020-01-01'::timestamptz + s * interval '1 minute', '{7,9}'::int[], '{1,10}'::bigint[] from generate_series(1, 6) s
union all select fetchq.queue_get_id('rq_time'), 'run', 0, null, '{7,8}', '{2,100}';
select count(*) from fetchq.doc_complete_many('rq_time', '{age-1,age-2}');
select fetchq.metric_log_pack() > 0 as packed;
select kind, slot, minute, buckets, counts from fetchq.timings where queue_id = fetchq.queue_get_id('rq_time') and slot = 0;
select count(*), sum((select sum(c) from unnest(counts) c)) from fetchq.timings where queue_id = fetchq.queue_get_id('rq_time');

-- A recount leaves them, a reset removes them.
select fetchq.mnt_run_all(100) is not null as did_run;
select count(*) from fetchq.timings where queue_id = fetchq.queue_get_id('rq_time');
select cnt from fetchq.metric_reset('rq_time');
select * from test.timings;

-- A dropped queue leaves nothing.
select fetchq.doc_complete('rq_time', 'age-3');
select fetchq.metric_log_pack() > 0 as packed;
select count(*) from fetchq.timings t where queue_id = fetchq.queue_get_id('rq_time');
select fetchq.queue_get_id('rq_time') as id \gset
drop view test.timings, test.totals;
drop function test.settle_all();
select was_dropped from fetchq.queue_drop('rq_time');
select was_dropped from fetchq.queue_drop('rq_time_dead');
select count(*) from fetchq.timings where queue_id = :id;
