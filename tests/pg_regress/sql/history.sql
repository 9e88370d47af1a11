-- Settled documents: they stay in the table, are removed, or move to the history.
-- Documents that are not active cause a warning.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_hist');
create view test.docs as select subject, status from fetchq_data.rq_hist__docs order by subject;
create function test.look() returns text language sql as $$ select test.delta('rq_hist') || ' / ' || test.exact('rq_hist') $$;
-- Settles documents in every way; returns the remaining documents and the counters.
create function test.settle() returns setof text language plpgsql as $$
begin
    perform fetchq.doc_push('rq_hist', s, 3, p::int, '2020-01-01', jsonb_build_object('n', p))
        from unnest('{stays,complete,kill,drop,many-1,many-2,with-1,with-2,drop-1,drop-2,reject,expire}'::text[]) with ordinality u (s, p);
    update fetchq_data.rq_hist__docs set max_attempts = 1 where subject in ('reject', 'expire');
    perform fetchq.doc_pick('rq_hist', 3, 11, '1h');
    perform fetchq.doc_pick('rq_hist', 3, 1, '1h');
    return next 'n ' || (select count(*) from fetchq_data.rq_hist__docs where status = 2);
    perform test.delta('rq_hist');
    return next fetchq.doc_complete('rq_hist', 'complete', '{"done": 1}');
    return next fetchq.doc_kill('rq_hist', 'kill', '{"done": 2}');
    return next fetchq.doc_drop('rq_hist', 'drop');
    return next (select string_agg(x::text, ' ' order by subject) from fetchq.doc_complete_many('rq_hist', '{many-1,many-2,nobody}') x);
    return next (select string_agg(x::text, ' ' order by subject) from fetchq.doc_complete_many('rq_hist', '{with-2,with-1}', array['{"w": 2}', null]::jsonb[]) x);
    return next (select string_agg(x::text, ' ' order by subject) from fetchq.doc_drop_many('rq_hist', '{drop-1,drop-2}') x);
    return next fetchq.doc_reject('rq_hist', 'reject', 'disk full', '{}');
    update fetchq_data.rq_hist__docs set next_iteration = now() - interval '1 minute' where subject = 'expire';
    return next (select m::text from fetchq.mnt_run('rq_hist', 10) m);
    return next test.look();
    return next (select string_agg(subject || ' ' || status, ', ' order by subject) from fetchq_data.rq_hist__docs);
end $$;
create view test.history as
select outcome, subject, version, priority, attempts, iterations, created_at <= now() as was_created, settled_at = now() as is_now, payload,
    last_error, ordering_key, origin, worker
from fetchq.history where queue = 'rq_hist' order by id;
set fetchq.worker = 'regress';
select test.error($$select from fetchq.queue_configure('rq_nope', '{"history": {"completed": "1h"}}')$$);
select test.error($$select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "-1h"}}')$$);
select test.error($$select fetchq.queue_trim_history('rq_nope')$$);
select test.error($$select fetchq.queue_history('rq_nope')$$);
select * from fetchq.queue_history('rq_hist');
select fetchq.queue_trim_history('rq_hist');

-- The default: settled documents stay.
begin;
select test.settle();
rollback;
-- Settled documents are removed at once.
begin;
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "0", "killed": "0", "dropped": "0"}}');
select to_regclass('fetchq_data.rq_hist__history');
select test.settle();
rollback;
-- Settled documents move to the history.
begin;
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "1 hour", "killed": "1 day", "dropped": "1 week"}}');
select test.settle();
select * from test.history;
-- A lost lease, and a missing document.
select test.error($$select fetchq.doc_complete('rq_hist', 'stays', '{}', 1)$$);
select fetchq.doc_complete('rq_hist', 'complete');
select fetchq.doc_complete('rq_hist', 'stays', lease => (select d.lease from fetchq_data.rq_hist__docs d where subject = 'stays'));
select * from test.docs;
-- The subjects are free.
select fetchq.doc_push('rq_hist', 'complete');
rollback;
-- The same with statements.
begin;
set local fetchq.direct = off;
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "1 hour", "killed": "0", "dropped": null}}');
select test.settle();
select * from test.history;
rollback;
-- Documents that are popped, dropped and cancelled.
begin;
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": null, "killed": "1 hour", "dropped": "1 hour"}}');
select fetchq.doc_push('rq_hist', s) from unnest('{p1,p2,d1,c1,c2,c3}'::text[]) s;
select test.look();
select subject from fetchq.doc_pop('rq_hist', 0, 2);
select test.look();
select fetchq.docs_drop('rq_hist', '{"subject_like": "d%"}');
select fetchq.docs_kill('rq_hist', '{"subject": "c1"}');
select * from fetchq.doc_cancel('rq_hist', 'c2');
select test.look();
-- A cancelled active document stays until its lease would have expired.
select subject from fetchq.doc_pick('rq_hist', 1);
select * from fetchq.doc_cancel('rq_hist', 'c3');
update fetchq.jobs set next_iteration = case when queue = 'rq_hist' and task = 'drp' then now() - interval '1 hour' else now() + interval '1 day' end;
select * from fetchq.mnt_job_run(100);
select * from test.docs;
update fetchq_data.rq_hist__docs set next_iteration = now() - interval '1 second';
update fetchq.jobs set next_iteration = now() - interval '1 hour' where queue = 'rq_hist' and task = 'drp';
select * from fetchq.mnt_job_run(100);
select * from test.docs;
select * from test.history;
select test.look();
rollback;

-- Documents that were settled before are archived in parts.
begin;
select test.settle();
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "1 hour", "killed": "0", "dropped": null}}');
update fetchq.jobs set next_iteration = case when queue = 'rq_hist' and task = 'drp' then now() - interval '1 hour' else now() + interval '1 day' end,
    payload = '{"mine": 1, "swept": "kz"}' where queue = 'rq_hist';
select test.look();
select * from fetchq.mnt_job_run(100);
select * from test.docs;
select test.look();
select payload from fetchq.jobs where queue = 'rq_hist' and task = 'drp';
update fetchq.jobs set next_iteration = now() - interval '1 hour' where queue = 'rq_hist' and task = 'drp';
select * from fetchq.mnt_job_run(100);
select * from test.docs;
select outcome, subject, last_error from fetchq.history order by id;
select test.look();
rollback;

-- Retention removes the oldest first; each outcome has its own setting.
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "1 hour", "killed": "1 day", "dropped": "1 week"}}');
insert into fetchq_data.rq_hist__history (settled_at, outcome, subject, version, priority, attempts, iterations)
select now() - age, o, o || ' ' || age, 0, 0, 0, 1
from unnest('{completed,killed,cancelled,dropped,popped}'::text[]) o, unnest('{59 minutes,61 minutes,23 hours,25 hours,6 days,8 days}'::interval[]) age;
select * from fetchq.queue_trim_history('rq_hist', 2);
select count(*), min(subject) filter (where outcome = 'completed') from fetchq.history;
select * from fetchq.queue_trim_history('rq_hist');
select outcome, string_agg(subject, ', ' order by settled_at) from fetchq.history group by 1 order by 1;
select * from fetchq.queue_trim_history('rq_hist');
-- The job does the same.
update fetchq_data.rq_hist__history set settled_at = settled_at - interval '1 day';
update fetchq.jobs set next_iteration = case when queue = 'rq_hist' and task = 'drp' then now() - interval '1 hour' else now() + interval '1 day' end;
select * from fetchq.mnt_job_run(100);
select outcome, string_agg(subject, ', ' order by settled_at) from fetchq.history group by 1 order by 1;
-- Documents without a retention are removed.
select from fetchq.queue_configure('rq_hist', '{"history": {"dropped": "1 week"}}');
select keep_completed, keep_killed, keep_dropped from fetchq.queues where name = 'rq_hist';
select * from fetchq.queue_trim_history('rq_hist');
select outcome, string_agg(subject, ', ' order by settled_at) from fetchq.history group by 1 order by 1;

-- Write privileges on the documents suffice for the history; reading it needs a privilege.
drop view test.docs, test.history;
drop function test.look(), test.settle();
select fetchq.queue_drop('rq_hist') is not null as dropped;
select to_regclass('fetchq_data.rq_hist__history');
create role regress_fetchq_worker;
create role regress_fetchq_reader;
select was_created from fetchq.queue_create('rq_hist');
grant usage on schema fetchq, fetchq_data to regress_fetchq_worker, regress_fetchq_reader;
grant execute on all functions in schema fetchq to regress_fetchq_worker, regress_fetchq_reader;
grant select on all tables in schema fetchq to regress_fetchq_worker, regress_fetchq_reader;
grant insert on all tables in schema fetchq to regress_fetchq_worker;
grant select, insert, update, delete on fetchq_data.rq_hist__docs to regress_fetchq_worker;
select from fetchq.queue_configure('rq_hist', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}');
grant usage on schema test to regress_fetchq_reader;
set role regress_fetchq_worker;
select fetchq.doc_push('rq_hist', 'w');
select subject from fetchq.doc_pick('rq_hist', 1);
select fetchq.doc_complete('rq_hist', 'w');
select outcome, subject, worker from fetchq.history;
reset role;
-- Who had the lease is named, whoever settles the document; who cancels or pops it, where nobody had
-- leased it.
select fetchq.doc_put('rq_hist', 'l' || i, priority => 10 - i, max_attempts => 1) is not null as is_put from generate_series(1, 9) i;
select subject from fetchq.doc_lease('rq_hist', 4, '1 hour', worker => 'alice');
select subject from fetchq.doc_lease('rq_hist', 3, '1 hour');
set fetchq.worker = 'somebody else';
select fetchq.doc_complete('rq_hist', 'l1', lease => test.lease_of('rq_hist', 'l1')), fetchq.doc_drop('rq_hist', 'l2', lease => test.lease_of('rq_hist', 'l2')),
    fetchq.doc_reject('rq_hist', 'l3', 'no', lease => test.lease_of('rq_hist', 'l3'));
select subject, outcome from fetchq.docs_settle('rq_hist', (select jsonb_agg(jsonb_build_object('subject', s, 'lease', test.lease_of('rq_hist', s), 'action', case s when 'l4' then 'kill' else 'complete' end)) from unnest('{l4,l5,l6}'::text[]) s));
select subject, settled from fetchq.doc_complete_many('rq_hist', '{l7}', lease => test.lease_of('rq_hist', 'l7'));
select fetchq.doc_cancel('rq_hist', 'l8');
select subject from fetchq.doc_pop('rq_hist', 0, 1);
select outcome, subject, worker from fetchq.history where subject like 'l%' order by subject;
select worker from fetchq.doc_get('rq_hist', 'l1');
set fetchq.worker = 'regress';
set role regress_fetchq_reader;
select count(*) from fetchq.history;
select test.error($$select * from fetchq.queue_history('rq_hist')$$);
reset role;
-- The history is truncated with the queue.
select fetchq.queue_truncate('rq_hist');
select count(*) from fetchq.history;
select fetchq.queue_truncate('rq_hist', true);
select count(*) from fetchq.history;

select was_dropped from fetchq.queue_drop('rq_hist');
drop owned by regress_fetchq_worker, regress_fetchq_reader;
drop role regress_fetchq_worker, regress_fetchq_reader;
reset fetchq.worker;

-- Pages of the history of a queue: the newest entries first, by filter.
select was_created from fetchq.queue_create('rq_past');
select from fetchq.queue_configure('rq_past', '{"history": {"completed": "1 year", "killed": "1 year", "dropped": "1 year"}}');
insert into fetchq_data.rq_past__history (settled_at, outcome, subject, version, priority, attempts, iterations, payload, last_error, worker, created_at)
select '2026-01-01 00:00:00.123456+00'::timestamptz + (i / 4) * interval '1 hour 1 microsecond', (array['completed', 'killed', 'dropped', 'popped', 'cancelled'])[1 + i % 5],
    's-' || lpad((i % 40)::text, 2, '0'), i % 2, i % 3, i % 4, i, jsonb_build_object('i', i), 'error ' || i % 7, 'node-' || i % 2, '2025-12-31'
from generate_series(1, 200) i;
select subject, outcome, position, settled_at, payload from fetchq.queue_history('rq_past', max_docs => 3);
-- All pages together are the whole, each entry once and in order.
with recursive pages as (
    select 1 as page, array(select row(id, position)::text from fetchq.queue_history('rq_past', '{}', 30)) as rows,
        (select position from fetchq.queue_history('rq_past', '{}', 30) offset 29) as last
    union all
    select page + 1, array(select row(id, position)::text from fetchq.queue_history('rq_past', '{}', 30, p.last)),
        (select position from fetchq.queue_history('rq_past', '{}', 30, p.last) offset 29) from pages p where p.last is not null)
select count(distinct page) as pages, count(*) as entries, array_agg(row order by page, n) = array(
    select row(id, position)::text from fetchq.queue_history('rq_past')) as same_as_whole,
    array(select id from fetchq.queue_history('rq_past')) = array(select id from fetchq_data.rq_past__history order by settled_at desc, id desc) as in_order
from pages, unnest(rows) with ordinality r (row, n);
select f as filter, count(*), min(h.id), max(h.id) from unnest(array[
    '{}', '{"outcome": "killed"}', '{"outcome": ["popped", "dropped"]}', '{"outcome": []}', '{"worker": "node-1"}', '{"version": 1, "min_attempts": 2}', '{"priority": [0, 1]}',
    '{"settled_since": "2026-01-02 00:00+00"}', '{"settled_before": "2026-01-01 05:00+00", "outcome": "completed"}', '{"settled_since": "2100-01-01"}',
    '{"subject": "s-07"}', '{"subject_like": "s-0%", "outcome": "killed"}', '{"subject_like": "%7"}', '{"error_like": "%3"}', '{"payload": {"i": 77}}', '{"newer_than": "1 day"}', '{"older_than": "1 day"}',
    '{"subject": ["s-07", "s-08", "s_09"]}', '{"subject_like": "s_07"}', '{"created_before": "2026-01-01"}', '{"created_since": "2026-01-01"}']) with ordinality f (f, n)
left join lateral fetchq.queue_history('rq_past', f::jsonb, 1000) h on true group by f, f.n order by f.n;
select f as filter, bool_and(a = b) as same_without_pages from unnest(array['{"outcome": "killed"}', '{"subject_like": "s-0%"}', '{"worker": "node-0", "version": 0}']) f,
    lateral (select array(select id from fetchq.queue_history('rq_past', f::jsonb)) as a, array(select id from fetchq.queue_history('rq_past', f::jsonb, 1000)) as b) x group by 1;
select id from fetchq.queue_history('rq_past', '{"subject": "s-07"}', 2);
select h.id from fetchq.queue_history('rq_past', '{"subject": "s-07"}', 2, (select position from fetchq.queue_history('rq_past', '{"subject": "s-07"}', 2) offset 1)) h;
select count(*) from fetchq.queue_history('rq_past', max_docs => 0);
select count(*) from fetchq.queue_history('rq_past', null, null, null);
select test.error(c) from unnest(array[
    $$select fetchq.queue_history('rq_nope', '{}', 1)$$, $$select fetchq.queue_history('rq_past', '{}', -1)$$, $$select fetchq.queue_history('rq_past', '[]', 1)$$,
    $$select fetchq.queue_history('rq_past', '{"status": "killed"}')$$, $$select fetchq.queue_history('rq_past', '{"all": true}')$$, $$select fetchq.queue_history('rq_past', '{"outcome": "dead"}')$$,
    $$select fetchq.queue_history('rq_past', '{"settled_since": "soon"}')$$, $$select fetchq.queue_history('rq_past', '{"settled_before": 7}')$$, $$select fetchq.queue_history('rq_past', '{"older_than": "-1 h"}')$$,
    $$select fetchq.queue_history('rq_past', after => 'soon')$$, $$select fetchq.queue_history('rq_past', after => '1-')$$, $$select fetchq.queue_history('rq_past', after => '99999999999999999999-1')$$,
    $$select fetchq.queue_history(max_docs => 1)$$, $$select fetchq.queue_history(filter => '{"outcome": "killed"}')$$, $$select fetchq.queue_history(after => '1-1')$$]) c;
-- Entries can be removed before their time, the oldest first.
begin;
select fetchq.queue_drop_history('rq_past', '{"outcome": "killed"}', dry_run => true) as killed, fetchq.queue_drop_history('rq_past', '{"all": true}', 7, true) as limited,
    fetchq.queue_drop_history('rq_past', '{"subject": "s-07", "worker": "node-1"}', dry_run => true) as of_subject, count(*) from fetchq_data.rq_past__history;
select fetchq.queue_drop_history('rq_past', '{"outcome": "killed"}', 3);
select fetchq.queue_drop_history('rq_past', '{"outcome": "killed", "settled_before": "2026-01-01 10:00+00"}');
select outcome, count(*), min(id) from fetchq_data.rq_past__history group by 1 order by 1;
select fetchq.queue_drop_history('rq_past', '{"all": true}'), count(*) from fetchq_data.rq_past__history;
select count(*) from fetchq_data.rq_past__history;
rollback;
select test.error(c) from unnest(array[
    $$select fetchq.queue_drop_history('rq_past')$$, $$select fetchq.queue_drop_history('rq_past', '{}', dry_run => true)$$, $$select fetchq.queue_drop_history('rq_past', '{"status": "killed"}')$$,
    $$select fetchq.queue_drop_history('rq_past', '{"all": true}', -1)$$, $$select fetchq.queue_drop_history('rq_nope', '{"all": true}')$$, $$select fetchq.queue_drop_history('rq_past', '{"settled_since": "soon"}')$$]) c;
-- How long a run took is known of what a worker has settled, and of nothing else.
begin;
select from fetchq.queue_create('rq_ran', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}, "max_attempts": 1}');
select fetchq.doc_put('rq_ran', s) from unnest('{a-done,b-dead,c-dropped,d-rejected,e-cancelled,f-killed,g-gone}'::text[]) s;
select count(*) from fetchq.doc_lease('rq_ran', 5);
update fetchq_data.rq_ran__docs set picked_at = picked_at - interval '2 hours';
select fetchq.docs_settle('rq_ran', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', case left(subject, 1) when 'a' then 'complete' when 'b' then 'kill' when 'c' then 'drop' when 'd' then 'reject' else 'snooze' end)) from fetchq_data.rq_ran__docs where status = 2));
select was_cancelled from fetchq.doc_cancel('rq_ran', 'e-cancelled');
select fetchq.docs_kill('rq_ran', '{"subject": "f-killed"}'), fetchq.docs_drop('rq_ran', '{"subject": "g-gone"}');
select subject, outcome, date_trunc('hour', ran) as ran from fetchq.queue_history('rq_ran') order by subject;
select subject from fetchq.queue_history('rq_ran', '{"min_ran": "1 hour"}', 10) order by 1;
select count(*) from fetchq.queue_history('rq_ran', '{"max_ran": "1 hour"}', 10);
rollback;
-- A page that would read too much is refused, and says how to go on. Other pages read little of a long history.
begin;
insert into fetchq_data.rq_past__history (settled_at, outcome, subject, version, priority, attempts, iterations)
select '2026-03-01 00:00+00', 'completed', 'much-' || i, 0, 0, 0, i from generate_series(1, 100100) i;
analyze fetchq_data.rq_past__history;
select test.error($$select fetchq.queue_history('rq_past', '{"worker": "nobody"}', 10)$$);
select count(*) from fetchq.queue_history('rq_past', '{"worker": "nobody"}');
select count(*) from fetchq.queue_history('rq_past', '{"worker": "node-1", "settled_before": "2026-02-01"}', 1000);
select count(*) from fetchq.queue_history('rq_past', '{"subject_like": "s-1%", "worker": "node-1"}', 1000);
select subject from fetchq.queue_history('rq_past', '{"subject_like": "much-%"}', 2);
rollback;
begin;
insert into fetchq_data.rq_past__history (settled_at, outcome, subject, version, priority, attempts, iterations)
select '2026-03-01 00:00+00'::timestamptz + i * interval '1 s', 'completed', 'much-' || i, 0, 0, 0, i from generate_series(1, 20000) i;
analyze fetchq_data.rq_past__history;
select pg_stat_get_xact_numscans('fetchq_data.rq_past__history'::regclass) as scans, pg_stat_get_xact_tuples_fetched('fetchq_data.rq_past__history'::regclass) as fetched \gset before_
select count(*) from fetchq.queue_history('rq_past', '{}', 10);
select pg_stat_get_xact_numscans('fetchq_data.rq_past__history'::regclass) - :before_scans as by_sequence,
    pg_stat_get_xact_tuples_fetched('fetchq_data.rq_past__history'::regclass) - :before_fetched < 100 as reads_little;
rollback;
-- Who may read it.
create role rq_past_reader;
create role rq_past_producer;
select fetchq.queue_grant('rq_past', 'rq_past_reader', 'reader'), fetchq.queue_grant('rq_past', 'rq_past_producer', 'producer');
grant usage on schema test to public;
grant execute on function test.error(text) to public;
begin read only;
set local role rq_past_reader;
select count(*), count(distinct queue) from fetchq.history;
select count(*) from fetchq.queue_history('rq_past', '{"outcome": "killed"}', 5);
rollback;
set role rq_past_producer;
select count(*) from fetchq.history;
select test.error($$select fetchq.queue_history('rq_past', '{}', 5)$$);
reset role;
select was_dropped from fetchq.queue_drop('rq_past');
drop owned by rq_past_reader, rq_past_producer;
drop role rq_past_reader, rq_past_producer;
