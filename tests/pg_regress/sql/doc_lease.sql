-- doc_lease and doc_lease_any: all that a worker has to know, and every option an argument.
select was_created from fetchq.queue_create('rq_dl', '{"max_attempts": 4, "lease": "7 minutes"}');
select was_created from fetchq.queue_create('rq_dl2');
select fetchq.doc_push('rq_dl', 'a', 0, 5, '2001-01-01', '{"n": 1}'), fetchq.doc_push('rq_dl', 'b', 0, 0, '2001-01-02', '{}'),
    fetchq.doc_push('rq_dl', 'c', 0, 0, '2001-01-03', '{}'), fetchq.doc_push('rq_dl', 'v1', 1, 0, '2001-01-01', '{}');
update fetchq_data.rq_dl__docs set headers = '{"trace": "t1"}', last_error = 'earlier' where subject = 'a';
update fetchq_data.rq_dl__docs set max_attempts = 9 where subject = 'b';

-- One document by default, by priority and time, for the duration that the queue is set to. A
-- document's own number of attempts goes before that of the queue.
create view test.leased as select subject, payload, headers, version, priority, attempts, max_attempts, iterations, last_error from fetchq.doc_lease('rq_dl');
prepare lease as select subject, payload, headers, version, priority, attempts, max_attempts, iterations,
    created_at <= now() as created, due_at < '2001-02-01' as due, picked_at = now() as picked, lease_ends - picked_at as duration, lease > 0 as lease, last_error
    from fetchq.doc_lease(queue => $1, max_docs => $2, duration => $3, version => $4, worker => $5, binding => $6);
begin;
select * from test.leased;
execute lease('rq_dl', 10, null, 0, null, null);
rollback;
-- By a statement, the result is the same.
begin;
set local fetchq.direct = off;
select * from test.leased;
execute lease('rq_dl', 10, null, 0, null, null);
rollback;
-- In a queue with a cap too.
begin;
select fetchq.queue_configure('rq_dl', '{"max_active": 2}') is not null;
execute lease('rq_dl', 10, null, 0, null, null);
rollback;
-- Another version, and another duration; a change of the setting holds at once.
begin;
execute lease('rq_dl', 10, '90 seconds', 1, null, null);
select fetchq.queue_configure('rq_dl', '{"lease": "1 month"}') is not null;
select lease_ends = picked_at + interval '1 month' as month, subject from fetchq.doc_lease('rq_dl', 2);
rollback;
begin;
select fetchq.queue_configure('rq_dl', '{"lease": null}') is not null;
select lease_ends - picked_at as duration from fetchq.doc_lease('rq_dl');
rollback;

-- The name of the worker and the binding are arguments, and the settings hold where they are NULL.
begin;
set local fetchq.worker = 'rq_dl_set';
set local fetchq.session_leases = 'keep';
select count(*) from fetchq.doc_lease('rq_dl');
select count(*) from fetchq.doc_lease('rq_dl', worker => 'rq_dl_given');
select count(*) from fetchq.doc_lease('rq_dl', worker => 'rq_dl_given', binding => 'OFF');
select subject, worker, binding from fetchq.leases where queue = 'rq_dl' order by subject;
rollback;

-- The row is a type of its own, which PL/pgSQL can declare.
do $$
declare
    job fetchq.leased;
    any_job fetchq.leased_any;
begin
    select * into job from fetchq.doc_lease('rq_dl');
    perform fetchq.doc_complete('rq_dl', job.subject, lease => job.lease);
    select * into any_job from fetchq.doc_lease_any(array['rq_dl2', 'rq_dl']);
    perform fetchq.doc_complete(any_job.queue, any_job.subject, lease => any_job.lease);
    raise notice '% of %, then % of %', job.attempts, job.max_attempts, any_job.attempts, any_job.max_attempts;
end $$;

-- Several queues: each has its own duration, attempts and documents.
select fetchq.doc_push('rq_dl2', 'd', '{}', '2001-01-04');
begin;
select queue, subject, max_attempts, lease_ends - picked_at as duration from fetchq.doc_lease_any('{rq_dl,rq_dl2}', 10) order by queue, subject;
rollback;
begin;
set local fetchq.direct = off;
select queue, subject, max_attempts, lease_ends - picked_at as duration, l.lease > 0 as lease
from fetchq.doc_lease_any(array['rq_dl', 'rq_dl2'], 10, '1 minute', 0, '{1,2}', 'rq_dl_any', 'return') l order by queue, subject;
select worker, binding from fetchq.leases where queue = 'rq_dl';
rollback;
select test.exact('rq_dl'), test.exact('rq_dl2');

-- Nothing is picked: no document, no version, no limit, a queue that is paused.
select count(*) from fetchq.doc_lease('rq_dl', 0);
select count(*) from fetchq.doc_lease('rq_dl', version => 7);
begin;
select fetchq.queue_configure('rq_dl', '{"paused": true}') is not null;
select count(*) from fetchq.doc_lease('rq_dl');
rollback;

-- What is wrong is an error, also where clients of fetchq 4 get a warning.
set fetchq.compat = '4.2.0';
select test.error('select fetchq.' || c) from unnest(array[
    $$doc_lease('rq_nope')$$, $$doc_lease_any('{rq_dl,rq_nope}')$$, $$doc_lease('rq dl')$$, $$doc_lease(null)$$,
    $$doc_lease('rq_dl', -1)$$, $$doc_lease('rq_dl', null)$$, $$doc_lease_any('{rq_dl}', -1)$$,
    $$doc_lease('rq_dl', duration => '-1 second')$$, $$doc_lease_any('{rq_dl}', duration => '-1 second')$$, $$doc_lease('rq_dl', duration => '300000 years')$$,
    $$doc_lease('rq_dl', version => null)$$, $$doc_lease('rq_dl', worker => '')$$, $$doc_lease('rq_dl', worker => repeat('w', 201))$$,
    $$doc_lease('rq_dl', binding => 'forever')$$, $$doc_lease('rq_dl', binding => '')$$, $$doc_lease_any('{rq_dl}', binding => 'forever')$$,
    $$doc_lease_any('{}')$$, $$doc_lease_any('{rq_dl,null}')$$, $$doc_lease_any('{rq_dl,rq_dl}')$$, $$doc_lease_any('{rq_dl}', weights => '{0}')$$]) c;
reset fetchq.compat;

-- Who may: a worker.
create role regress_fetchq_dl;
grant usage on schema test to regress_fetchq_dl;
create function test.leases_as(kind text) returns table (call text, result text) language plpgsql as $$
begin
    if kind <> 'none' then
        perform fetchq.queue_grant('rq_dl', 'regress_fetchq_dl', kind);
    end if;
    foreach call in array array['doc_lease(''rq_dl'')', 'doc_lease_any(''{rq_dl}'')'] loop
        set local role regress_fetchq_dl;
        result := test.error('select fetchq.' || call);
        reset role;
        return next;
    end loop;
    if kind <> 'none' then
        perform fetchq.queue_revoke('rq_dl', 'regress_fetchq_dl', kind);
    end if;
end $$;
begin;
select kind, result from unnest('{none,reader,producer,worker}'::text[]) kind, test.leases_as(kind);
rollback;
drop function test.leases_as(text);
revoke usage on schema test from regress_fetchq_dl;
drop role regress_fetchq_dl;
deallocate lease;
drop view test.leased;
select was_dropped from fetchq.queue_drop('rq_dl');
select was_dropped from fetchq.queue_drop('rq_dl2');
