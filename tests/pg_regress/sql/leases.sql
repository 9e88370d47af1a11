-- Leases: each pick has a lease number, and a call with it settles only that lease.
select was_created from fetchq.queue_create('rq_lease');
select fetchq.doc_push('rq_lease', s) from unnest('{a,b,c,d,e,f,g,h}'::text[]) s;
create table held (subject text primary key, lease bigint);
insert into held select subject, lease from fetchq.doc_pick('rq_lease', 0, 8, '5m');
select count(distinct lease), bool_and(lease > 0) from held;
create function lease_of(text) returns bigint language sql as 'select lease from held where subject = $1';

-- A wrong lease number settles nothing, with any call.
select fetchq.doc_complete('rq_lease', 'a', null, 1);
select fetchq.doc_kill('rq_lease', 'a', lease => 1);
select fetchq.doc_drop('rq_lease', 'a', 1);
select fetchq.doc_reschedule('rq_lease', 'a', now(), null, 1);
select fetchq.doc_reject('rq_lease', 'a', 'm', '{}', null, 1);
select fetchq.doc_snooze('rq_lease', 'a', now(), 1);
select fetchq.doc_extend('rq_lease', 'a', '1h', 1);
select fetchq.doc_complete('rq_lease', 'none', null, 1);
select settled from fetchq.doc_complete_many('rq_lease', '{a,b}', lease => 1);
select settled from fetchq.doc_reschedule_many('rq_lease', '{a,b}', now(), lease => 1);
select settled from fetchq.doc_drop_many('rq_lease', '{a,b}', 1);
select count(*) from fetchq_data.rq_lease__docs where status = 2;
select count(*) from fetchq_data.rq_lease__logs;

-- The right lease number settles the document.
select fetchq.doc_complete('rq_lease', 'a', null, lease_of('a')), fetchq.doc_kill('rq_lease', 'b', '{"k": 1}', lease_of('b')),
    fetchq.doc_drop('rq_lease', 'c', lease_of('c')), fetchq.doc_reschedule('rq_lease', 'd', '2100-01-01', null, lease_of('d')),
    fetchq.doc_reject('rq_lease', 'e', 'no luck', '{}', null, lease_of('e')), fetchq.doc_snooze('rq_lease', 'f', '2100-01-01', lease_of('f'));
select subject, status, attempts, iterations, payload, lease is not null and worker_session is not null as keeps_lease, last_error
from fetchq_data.rq_lease__docs order by subject;
select subject, message, attempt from fetchq_data.rq_lease__logs;
-- A second call fails, because the document is no longer active.
select regexp_replace(test.error($$select fetchq.doc_complete('rq_lease', 'a', null, lease_of('a'))$$), 'lease \d+', 'lease N');
-- A list is settled as a whole, or not at all.
select regexp_replace(test.error($$select settled from fetchq.doc_complete_many('rq_lease', '{g,a}', lease => lease_of('g'))$$), 'lease \d+', 'lease N');
select * from fetchq.doc_complete_many('rq_lease', '{g,h}', lease => lease_of('g'));

-- Extending: the new duration starts now, and may be longer or shorter.
select fetchq.doc_push('rq_lease', 'x', '{}', '2000-01-01');
update held set lease = p.lease from fetchq.doc_pick('rq_lease', '5m') p where held.subject = 'a';
select lease_ends > now() + interval '59 minutes' as is_later, stop from fetchq.doc_extend('rq_lease', 'x', '1 hour', lease_of('a'));
select lease_ends < now() + interval '2 minutes' as is_sooner, stop from fetchq.doc_extend('rq_lease', 'x', '1 minute', lease_of('a'));
select stop from fetchq.doc_extend('rq_lease', 'x', '1 minute');
select fetchq.doc_extend('rq_lease', 'x', '-1 minute', lease_of('a'));
select fetchq.doc_extend('rq_none', 'x', '1 minute', 1);
select fetchq.doc_extend('rq_lease', 'a', '1 minute');
select fetchq.doc_extend('rq_lease', 'none', '1 minute');

-- Cancelling: the worker of an active document loses the lease, and learns of it.
select * from fetchq.doc_cancel('rq_lease', 'x');
select * from fetchq.doc_extend('rq_lease', 'x', '1 hour', lease_of('a'));
select regexp_replace(test.error($$select fetchq.doc_complete('rq_lease', 'x', null, lease_of('a'))$$), 'lease \d+', 'lease N');
select fetchq.doc_extend('rq_lease', 'x', '1 hour', 1);
select * from fetchq.doc_cancel('rq_lease', 'x');
select * from fetchq.doc_cancel('rq_lease', 'd');
select fetchq.doc_push('rq_lease', 'y');
select * from fetchq.doc_cancel('rq_lease', 'y');
select * from fetchq.doc_cancel('rq_lease', 'a');
select * from fetchq.doc_cancel('rq_lease', 'none');
select fetchq.doc_cancel('rq_none', 'x');
select subject, status, attempts, last_error from fetchq_data.rq_lease__docs where last_error = 'cancelled' order by 1;

-- Popping: the document is removed at once; a rollback restores it.
select was_created from fetchq.queue_create('rq_pop');
select fetchq.doc_push('rq_pop', 'p' || i, 0, i % 2, '2020-01-01', jsonb_build_object('i', i)) from generate_series(1, 4) i;
select fetchq.doc_push('rq_pop', 'later', 0, 9, '2100-01-01', '{}'), fetchq.doc_push('rq_pop', 'v1', 1, 0, '2020-01-01', '{}');
begin;
select subject, payload, version, priority, attempts, lock_upgrade from fetchq.doc_pop('rq_pop', 0, 3);
select cnt, pnd, ent, drp, pkd, prc from fetchq.metric_get_common('rq_pop');
rollback;

begin;
savepoint s;
select subject from fetchq.doc_pop('rq_pop');
rollback to s;
select subject from fetchq.doc_pop('rq_pop');
commit;
set fetchq.direct = off;
select subject from fetchq.doc_pop('rq_pop', 0, 2);
reset fetchq.direct;
select subject from fetchq.doc_pop('rq_pop', 0, 5);
select subject from fetchq.doc_pop('rq_pop', 0, 5);
select subject from fetchq.doc_pop('rq_pop', 1, 0);
select subject from fetchq.doc_pop('rq_pop', 1);
select fetchq.doc_pop('rq_pop', 0, -1);
select * from fetchq.doc_pop('rq_none');
select cnt, pln, pnd, ent, drp, pkd, prc from fetchq.metric_get_common('rq_pop');
select metric, current_value from fetchq.metric_get('rq_pop') where metric ~ '^v';

-- The leases and their workers.
set fetchq.worker = 'rq_node';
select was_created from fetchq.queue_create('rq_who');
select fetchq.doc_push('rq_who', 'w' || i) from generate_series(1, 3) i;
select subject from fetchq.doc_pick('rq_who', 2);
select queue, subject, version, attempts, worker, pid = pg_backend_pid() as is_mine, binding,
    until - since between interval '4m 59s' and interval '5m 1s' as for_five_minutes, lease > 0 as has_number
from fetchq.leases where queue = 'rq_who' order by subject;
select sessions, documents, queues, is_asked_to_stop, first_lease_ends > oldest_picked_at as expires from fetchq.workers where name = 'rq_node';
select fetchq.worker_stop('rq_node');
select stop from fetchq.doc_extend('rq_who', 'w1', '5m');
select is_asked_to_stop from fetchq.workers where name = 'rq_node';
select fetchq.worker_release('rq_node');
select fetchq.worker_release('rq_node');
select fetchq.worker_release('rq_nobody');
select fetchq.worker_release(null);
select fetchq.worker_stop(null);
select subject, status, attempts, lease is not null and worker_session is not null as keeps_lease from fetchq_data.rq_who__docs order by 1;
-- Another name means another worker, even in one session; without a name the session counts.
begin;
set local fetchq.worker = 'rq_other';
select subject from fetchq.doc_pick('rq_who');
commit;
reset fetchq.worker;
set application_name = 'rq_app';
select subject from fetchq.doc_pick('rq_who');
select subject, replace(worker, pg_backend_pid()::text, 'PID') as worker from fetchq.leases where queue = 'rq_who' order by 1;
reset application_name;
-- A pick that is rolled back stores no worker session; the next one stores it.
begin;
set local fetchq.worker = 'rq_undone';
select subject from fetchq.doc_pick('rq_who');
rollback;
select count(*) from fetchq.worker_sessions where name = 'rq_undone';
set fetchq.worker = 'rq_undone';
select subject from fetchq.doc_pick('rq_who');
select worker from fetchq.leases where subject = 'w3' and queue = 'rq_who';
reset fetchq.worker;

-- The time of the next attempt.
select was_created from fetchq.queue_create('rq_retry');
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": "10 s", "factor": 2, "max_delay": "25 s"}, "max_attempts": 4}');
select fetchq.doc_push('rq_retry', 'r');
create function attempt(delay interval default null) returns text language plpgsql as $$
declare
    picked record;
    said text;
begin
    select * into picked from fetchq.doc_pick('rq_retry', '5m');
    perform fetchq.doc_reject('rq_retry', 'r', 'attempt ' || picked.attempts, '{}', lease => picked.lease, delay => attempt.delay);
    select format('status %s after attempt %s: %s', d.status, d.attempts, d.next_iteration - now()) into said from fetchq_data.rq_retry__docs d;
    update fetchq_data.rq_retry__docs set next_iteration = '2020-01-01';
    return said;
end $$;
select attempt();
set fetchq.direct = off;
select attempt();
select attempt('1 hour');
reset fetchq.direct;
select attempt() like 'status -1 after attempt 4: %' as is_killed;
select message, attempt from fetchq_data.rq_retry__logs order by id;
select status, last_error from fetchq_data.rq_retry__docs;
-- A document with its own maximum number of attempts.
select fetchq.doc_push('rq_retry', 'own');
update fetchq_data.rq_retry__docs set max_attempts = 1 where subject = 'own';
select subject, fetchq.doc_reject('rq_retry', subject, 'once', '{}') from fetchq.doc_pick('rq_retry');
select status from fetchq_data.rq_retry__docs where subject = 'own';
-- An expired lease is recorded as the error of the document.
select fetchq.doc_push('rq_retry', 'left');
update fetchq_data.rq_retry__docs set max_attempts = 2 where subject = 'left';
select subject from fetchq.doc_pick('rq_retry', '0s');
select * from fetchq.mnt_run('rq_retry', 10);
select status, attempts, last_error from fetchq_data.rq_retry__docs where subject = 'left';
select subject from fetchq.doc_pick('rq_retry', '0s');
select * from fetchq.mnt_run('rq_retry', 10);
select status, attempts, last_error from fetchq_data.rq_retry__docs where subject = 'left';
-- Without a retry setting, the next attempt is due when the lease would have expired.
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": null}}');
select retry_base, retry_factor, retry_max_delay, retry_jitter, max_attempts from fetchq.queues where name = 'rq_retry';
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": "-1 s"}}');
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": "1 s", "factor": 0.5}}');
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": "1 s", "factor": "NaN"}}');
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": "1 s", "jitter": 2}}');
select from fetchq.queue_configure('rq_retry', '{"retry": {"base": "1 s"}, "max_attempts": 0}');
select from fetchq.queue_configure('rq_none', '{"retry": {"base": "1 s"}}');
select fetchq.doc_push('rq_retry', 'z');
select subject, fetchq.doc_reject('rq_retry', subject, 'm', '{}', delay => '-1 s') from fetchq.doc_pick('rq_retry');

-- The leases of one queue, in pages; and of all queues, up to a number.
select was_created from fetchq.queue_create('rq_page');
select fetchq.doc_push('rq_page', 'p' || i) from generate_series(1, 7) i;
select count(*) from fetchq.doc_pick('rq_page', 6, '1h');
select subject, queue, lease_ends > now() + interval '59 minutes' as lasts from fetchq.lease_list('rq_page');
select subject from fetchq.lease_list('rq_page', 2);
select subject from fetchq.lease_list('rq_page', 2, 'p2');
select subject from fetchq.lease_list('rq_page', max_docs => 9, after => 'p5');
select subject from fetchq.lease_list('rq_page', after => 'p7');
select count(*) from fetchq.lease_list('rq_page', 0);
select count(*) from fetchq.lease_list(null, 0);
select count(distinct queue) > 1 as of_several, count(*) = (select count(*) from fetchq.leases) as are_all from fetchq.lease_list(max_docs => 1000);
select count(*) from fetchq.lease_list(max_docs => 3);
select test.error(c) from unnest(array[
    $$select fetchq.lease_list('rq_none')$$, $$select fetchq.lease_list('no queue')$$, $$select fetchq.lease_list('rq_page', -1)$$,
    $$select fetchq.lease_list(after => 'p1')$$]) c;
-- A queue without leases is not read, one that is named is: plain SQL goes past the counters.
select was_created from fetchq.queue_create('rq_raw');
insert into fetchq_data.rq_raw__docs (subject, status, next_iteration) values ('raw', 2, '2100-01-01');
select count(*) from fetchq.lease_list() where queue = 'rq_raw';
select subject from fetchq.lease_list('rq_raw');
select from fetchq.metric_reset('rq_raw');
select subject from fetchq.lease_list() where queue = 'rq_raw';
-- Reading all queues keeps no lock on their tables, so their number has no bound. Nothing is written.
begin read only;
select count(*) > 6 as has_leases from fetchq.leases;
select count(*) > 2 as has_workers from fetchq.workers;
select queue, type from fetchq.trace('p1');
select count(*) >= 0 as has_history from fetchq.history;
select count(*) > 5 as has_counts from fetchq.metric_compute_all();
select relation::regclass as kept from pg_locks
where pid = pg_backend_pid() and locktype = 'relation' and relation::regclass::text like 'fetchq_data.%';
commit;
-- The due index is read, and not the documents.
begin;
insert into fetchq_data.rq_page__docs (subject, status) select 'much' || i, 3 from generate_series(1, 20000) i;
analyze fetchq_data.rq_page__docs;
create function test.scans(relation text) returns bigint language sql as $$ select pg_stat_get_xact_numscans(('fetchq_data.' || relation)::regclass) $$;
select test.scans('rq_page__docs') as by_sequence, test.scans('rq_page__docs_pkey') as by_subject, test.scans('rq_page__docs_due_idx') as by_status \gset before_
select count(*) from fetchq.lease_list('rq_page');
select test.scans('rq_page__docs') - :before_by_sequence as by_sequence, test.scans('rq_page__docs_pkey') - :before_by_subject as by_subject,
    test.scans('rq_page__docs_due_idx') - :before_by_status as by_status;
rollback;
-- Who may read them: a reader and a worker; all others see no leases.
create role rq_lease_reader;
create role rq_lease_producer;
create role rq_lease_stranger;
select fetchq.queue_grant('rq_page', 'rq_lease_reader', 'reader'), fetchq.queue_grant('rq_page', 'rq_lease_producer', 'producer');
grant usage on schema fetchq, fetchq_data to rq_lease_stranger;
grant usage on schema test to public;
grant execute on function test.error(text) to public;
set role rq_lease_reader;
select count(*), count(distinct queue) from fetchq.lease_list();
select count(*) from fetchq.lease_list('rq_page');
set role rq_lease_producer;
select count(*) from fetchq.lease_list();
select test.error($$select fetchq.lease_list('rq_page')$$);
set role rq_lease_stranger;
select count(*) from fetchq.lease_list();
select test.error($$select fetchq.lease_list('rq_page')$$);
reset role;
drop owned by rq_lease_reader, rq_lease_producer, rq_lease_stranger;
drop role rq_lease_reader, rq_lease_producer, rq_lease_stranger;
select (fetchq.queue_drop(n)).was_dropped from unnest('{rq_page,rq_raw}'::text[]) n;

select queue, what, cnt, pln, pnd, act, cpl, kll from (
    select n as queue, 'counted' as what, c.* from unnest('{rq_lease,rq_pop,rq_who,rq_retry}'::text[]) n, fetchq.metric_compute(n) c
    union all
    select n, 'told', t.cnt, t.pln, t.pnd, t.act, t.kll, t.cpl from unnest('{rq_lease,rq_pop,rq_who,rq_retry}'::text[]) n, fetchq.metric_get_common(n) t) s
order by queue, what;
select (fetchq.queue_drop(n)).was_dropped from unnest('{rq_lease,rq_pop,rq_who,rq_retry}'::text[]) n;
drop table held;
drop function lease_of, attempt;
