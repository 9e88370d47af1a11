-- What a worker learns that begins again: the progress of the attempts before, and that it has settled a
-- document already.
select was_created from fetchq.queue_create('rq_rep', '{"max_attempts": 5}');
create table held (subject text primary key, lease bigint);
create function settle(doc text, action text, more jsonb default '{}') returns setof fetchq.settlement language sql as $$
    select s.* from fetchq.docs_settle('rq_rep', (select jsonb_build_array(jsonb_build_object('subject', h.subject, 'lease', h.lease, 'action', action) || more) from held h where h.subject = doc)) s $$;
create function lease() returns setof text language sql as $$
    with leased as (select * from fetchq.doc_lease('rq_rep', 10)),
    kept as (insert into held select subject, lease from leased on conflict (subject) do update set lease = excluded.lease)
    select concat_ws(' ', subject, attempts, progress) from leased order by subject $$;
create function single(call text) returns text language sql as $$
    select regexp_replace(test.error('select fetchq.' || call), 'lease \d+', 'lease N') $$;

-- Progress survives a rejection, a snooze, an expired lease and a release, and comes with the lease.
select fetchq.doc_put('rq_rep', s) from unnest('{reject,snooze,expire,release,complete,reschedule,kill}'::text[]) s;
select lease();
select count(*) from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'progress', jsonb_build_object('of', subject))) from held), '0') where outcome = 'extended';
select * from settle('reject', 'reject', '{"message": "no", "delay": "0"}');
select * from settle('snooze', 'snooze');
select * from settle('complete', 'complete');
select * from settle('reschedule', 'reschedule', '{"delay": "0"}');
select * from settle('kill', 'kill');
select pg_sleep(0.01);
select * from fetchq.mnt_run('rq_rep', 10);
select lease();
-- With the statement in place of the direct path too.
select count(*) from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease)) from held), '0') where outcome = 'extended';
select * from fetchq.mnt_run('rq_rep', 10);
begin;
set local fetchq.direct = off;
select subject, progress from fetchq.docs_next('rq_rep', max_docs => 10) order by 1;
rollback;
-- What has succeeded begins anew; what was killed goes on when it is revived.
select subject, status, progress from fetchq.docs_list('rq_rep', '{"status": ["completed", "killed"]}') order by 1;
select fetchq.doc_revive('rq_rep', 'complete'), fetchq.doc_revive('rq_rep', 'kill');
select lease();
-- A document that is put anew has no progress.
select * from settle('reject', 'snooze');
select fetchq.doc_put('rq_rep', 'reject', mode => 'replace');
select lease();
select fetchq.queue_truncate('rq_rep', true);
truncate held;

-- A settlement is repeated. In the table:
select fetchq.doc_put('rq_rep', s) from unnest('{complete,drop,kill,reject,reschedule,snooze}'::text[]) s;
select count(*) from lease();
create function all_of() returns setof fetchq.settlement language sql as $$
    select * from settle('complete', 'complete', '{"result": {"n": 1}}') union all
    select * from settle('drop', 'drop') union all
    select * from settle('kill', 'kill', '{"message": "gone"}') union all
    select * from settle('reject', 'reject', '{"message": "no", "delay": "1 hour"}') union all
    select * from settle('reschedule', 'reschedule', '{"delay": "1 hour"}') union all
    select * from settle('snooze', 'snooze', '{"delay": "1 hour"}') $$;
select * from all_of();
select * from all_of();
-- Nothing was counted or logged twice.
select count(*) from fetchq_data.rq_rep__logs;
select test.exact('rq_rep');
-- A transaction that writes more has to be rolled back, so single calls fail, and a list with on_lost => 'error'.
select single(format($$doc_complete('rq_rep', 'complete', lease => %s)$$, lease)) from held where subject = 'complete';
select single(format($$doc_kill('rq_rep', 'kill', lease => %s)$$, lease)) from held where subject = 'kill';
select single(format($$docs_settle('rq_rep', '[{"subject": "reject", "lease": %s, "action": "reject", "message": "no"}]', 'error')$$, lease)) from held where subject = 'reject';
-- docs_next has nothing to warn of, but of what was lost.
select subject from fetchq.docs_next('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete')) from held where subject = 'complete'), on_lost => 'warning');
select subject from fetchq.docs_next('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete')) from held where subject = any ('{complete,kill}')), on_lost => 'warning');
-- Another action than the one that was done, and another lease, are not repeated.
select * from settle('complete', 'reject', '{"message": "no"}');
update held set lease = lease - 1;
select * from all_of();
update held set lease = lease + 1;
-- By statements in place of the direct path.
select fetchq.queue_truncate('rq_rep', true);
truncate held;
select count(*) from (select fetchq.doc_put('rq_rep', s) from unnest('{complete,drop,kill,reject,reschedule,snooze}'::text[]) s) p;
select count(*) from lease();
set fetchq.direct = off;
select * from all_of();
select * from all_of();
reset fetchq.direct;
-- Not the worker has ended the lease: it was cancelled, it ran out, it was released, or killed by an administrator.
select fetchq.queue_truncate('rq_rep', true);
truncate held;
select fetchq.doc_put('rq_rep', s, max_attempts => 1) from unnest('{cancelled,dead,released,dropped}'::text[]) s;
select count(*) from lease();
select was_cancelled from fetchq.doc_cancel('rq_rep', 'cancelled');
select fetchq.docs_drop('rq_rep', '{"status": "active", "subject": "dropped"}');
select outcome from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease)) from held where subject = 'dead'), '0');
select pg_sleep(0.01);
select * from fetchq.mnt_run('rq_rep', 10);
update fetchq.worker_sessions set name = 'rq_rep_worker' where queue_id = (select id from fetchq.queues where name = 'rq_rep');
select fetchq.worker_release('rq_rep_worker');
select held.subject, a.action, s.outcome, s.status
from held, unnest('{complete,kill,reject,reschedule,drop,snooze}'::text[]) a (action),
    settle(subject, a.action, case a.action when 'reject' then '{"message": "no"}' when 'reschedule' then '{"delay": "0"}' else '{}' end::jsonb) s
order by held.subject, a.action;

-- Others change a document after its lease is over. What they do is not what its worker has done.
select fetchq.queue_truncate('rq_rep', true);
truncate held;
select fetchq.doc_put('rq_rep', s) from unnest('{admin,cancelled,docs_kill,early,expired,retried,revived}'::text[]) s;
select count(*) from lease();
select * from settle('retried', 'complete');
select * from settle('revived', 'kill');
select * from settle('expired', 'reschedule', '{"delay": "1 hour"}');
select fetchq.docs_retry('rq_rep', '{"status": "completed"}'), fetchq.doc_revive('rq_rep', 'revived');
select fetchq.doc_set_due('rq_rep', 'expired', now() + interval '2 hours');
update fetchq_data.rq_rep__docs set expires_at = now() where subject = 'expired';
select count(*) from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease)) from held where subject = any ('{admin,cancelled,docs_kill,early}')), '0') where outcome = 'extended';
select pg_sleep(0.01);
select * from fetchq.mnt_run('rq_rep', 10);
select fetchq.docs_retry('rq_rep', '{"subject": "early"}');
select was_cancelled from fetchq.doc_cancel('rq_rep', 'cancelled');
select fetchq.docs_kill('rq_rep', '{"subject": "docs_kill"}');
select fetchq.doc_kill('rq_rep', 'admin', message => 'by hand');
select subject, status, attempts, last_error from fetchq.docs_list('rq_rep', '{"all": true}') order by 1;
select held.subject, a.action, s.outcome, s.status
from held, unnest('{complete,kill,reject,reschedule,snooze}'::text[]) a (action),
    settle(subject, a.action, case a.action when 'reject' then '{"message": "no"}' when 'reschedule' then '{"delay": "0"}' else '{}' end::jsonb) s
where s.outcome <> 'lost'
order by held.subject, a.action;
-- One transaction settles the document, leases it again and commits: the second lease runs out.
select fetchq.queue_truncate('rq_rep', true);
truncate held;
select fetchq.doc_put('rq_rep', s) from unnest('{reject,reschedule}'::text[]) s;
select count(*) from lease();
begin;
select * from settle('reject', 'reject', '{"message": "no", "delay": "0"}');
select * from settle('reschedule', 'reschedule', '{"delay": "0"}');
select count(*) from lease();
commit;
select count(*) from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease)) from held), '0') where outcome = 'extended';
select pg_sleep(0.01);
select * from fetchq.mnt_run('rq_rep', 10);
select * from settle('reject', 'reject', '{"message": "no"}');
select * from settle('reschedule', 'reschedule', '{"delay": "0"}');
-- A lease and its settlement in one transaction.
begin;
select count(*) from lease();
select * from settle('reject', 'reject', '{"message": "no", "delay": "1 hour"}');
commit;
select * from settle('reject', 'reject', '{"message": "no"}');
-- What the worker did stays true, whatever becomes of the document.
select was_cancelled from fetchq.doc_cancel('rq_rep', 'reject');
select * from settle('reject', 'reject', '{"message": "no"}');
select * from settle('reject', 'kill');

-- In the history.
select fetchq.queue_configure('rq_rep', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}') is not null;
select fetchq.queue_truncate('rq_rep', true);
truncate held;
select fetchq.doc_put('rq_rep', s) from unnest('{complete,drop,kill,reject,reschedule,snooze}'::text[]) s;
select fetchq.doc_put('rq_rep', s, max_attempts => 1) from unnest('{dead,last}'::text[]) s;
select fetchq.doc_put('rq_rep', 'admin');
select count(*) from lease();
select * from settle('last', 'reject', '{"message": "no"}');
select outcome from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease)) from held where subject = 'admin'), '0');
select outcome from fetchq.docs_extend('rq_rep', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease)) from held where subject = 'dead'), '0');
select pg_sleep(0.01);
select * from fetchq.mnt_run('rq_rep', 10);
select * from all_of();
select * from all_of();
select * from settle('last', 'reject', '{"message": "no"}');
select * from settle('dead', 'kill');
-- Both were killed, and only one was rejected.
select * from settle('last', 'kill');
select * from settle('kill', 'reject', '{"message": "no"}');
-- An administrator kills what has no lease any more.
select fetchq.doc_kill('rq_rep', 'admin', message => 'by hand');
select * from settle('admin', 'kill');
select * from settle('admin', 'reject', '{"message": "no"}');
-- A subject that was put anew, and is another document.
select fetchq.doc_put('rq_rep', 'complete');
select * from settle('complete', 'complete');
select subject, outcome, lease = (select lease from held h where h.subject = x.subject) as has_lease from fetchq_data.rq_rep__history x order by id;
select test.exact('rq_rep');
drop function all_of();
drop function settle(text, text, jsonb);
drop function lease();
drop function single(text);
drop table held;
select was_dropped from fetchq.queue_drop('rq_rep');
