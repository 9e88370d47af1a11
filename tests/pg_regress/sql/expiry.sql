-- Documents that expire if they do not begin in time: expires_in and expire_after. There is no background
-- worker, so nothing is killed before mnt_run().
select was_created from fetchq.queue_create('rq_expiry', '{"max_attempts": 5, "history": {"completed": null, "killed": null, "dropped": null}}');
set fetchq.worker = 'regress';
create function test.expiry(queue text default 'rq_expiry') returns table (subject text, status text, expires text, last_error text) language sql as $$
select d.subject, d.status, case when d.expires_at <= now() then 'past' else (d.expires_at - greatest(d.due_at, d.created_at))::text end, d.last_error
from fetchq.docs_list($1) d order by d.subject $$;
-- An outage of two days.
create function test.outage(queue text default 'rq_expiry') returns bigint language plpgsql as $$
declare
    n bigint;
begin
    execute format('update fetchq_data.%I set next_iteration = next_iteration - interval ''2 days'', created_at = created_at - interval ''2 days'', expires_at = expires_at - interval ''2 days'' where status in (0, 1)', queue || '__docs');
    get diagnostics n = row_count;
    return n;
end $$;

-- A code that is two days old is not mailed after an outage: no worker gets it, whether maintenance has run or not.
select fetchq.doc_put('rq_expiry', 'code', expires_in => '10 minutes'), fetchq.doc_put('rq_expiry', 'letter'),
    fetchq.doc_put('rq_expiry', 'planned', delay => '1 hour', expires_in => '10 minutes');
select * from fetchq.doc_put_many('rq_expiry', '[{"subject": "listed", "expires_in": "5 minutes"}, {"subject": "unlisted", "expires_in": null}]');
select * from test.expiry();
select test.outage();
select * from test.expiry();
select reason, since < now() as was, detail from fetchq.doc_explain('rq_expiry', 'code') where reason = 'expired';
select subject from fetchq.doc_pick('rq_expiry', 0, 10, '1h');
set fetchq.direct = off;
select subject from fetchq.doc_pick('rq_expiry', 0, 10, '1h');
select count(*) from fetchq.doc_pop('rq_expiry', 0, 10);
reset fetchq.direct;
-- What waits for documents does not find them either.
call fetchq.queue_wait('{rq_expiry}', '0');
select * from fetchq.mnt_run('rq_expiry', 100);
select * from test.expiry();
select test.delta('rq_expiry');
select test.exact('rq_expiry');
select reason, detail from fetchq.doc_explain('rq_expiry', 'code');
call fetchq.doc_await('rq_expiry', 'code', '0');
-- They are killed, and can be revived. Then they do not expire.
select fetchq.doc_revive('rq_expiry', 'code'), affected from fetchq.docs_retry('rq_expiry', '{"subject": "listed"}');
select * from test.expiry() where subject in ('code', 'listed');
select fetchq.doc_complete('rq_expiry', subject) from fetchq.doc_pick('rq_expiry', 0, 2, '1h');

-- What has begun does not expire: neither leased, nor rejected, nor rescheduled. What is given back as if it had not been picked does.
select fetchq.queue_truncate('rq_expiry');
select fetchq.doc_put('rq_expiry', s, expires_in => '1 hour') from unnest('{leased,rejected,rescheduled,snoozed}'::text[]) s;
select count(*) from fetchq.doc_pick('rq_expiry', 0, 4, '1h');
select fetchq.doc_reject('rq_expiry', 'rejected', 'disk full', delay => '0'), fetchq.doc_reschedule('rq_expiry', 'rescheduled', now()), fetchq.doc_snooze('rq_expiry', 'snoozed', now());
update fetchq_data.rq_expiry__docs set expires_at = now() - interval '1 second' where expires_at is not null;
select * from fetchq.mnt_run('rq_expiry', 100);
select * from test.expiry();
select count(*) from fetchq.doc_pick('rq_expiry', 0, 4, '1h');

-- Another time, another end: as long after it as before.
select fetchq.queue_truncate('rq_expiry');
select fetchq.doc_put('rq_expiry', 'a', delay => '1 hour', expires_in => '10 minutes');
select fetchq.doc_set_due('rq_expiry', 'a', delay => '2 days');
select * from test.expiry();
select affected from fetchq.docs_set_due('rq_expiry', delay => '3 days', filter => '{"all": true}');
select * from test.expiry();
select fetchq.doc_put('rq_expiry', 'a', mode => 'debounce', delay => '2 hours');
select * from test.expiry();
select fetchq.doc_put('rq_expiry', 'a', mode => 'debounce', delay => '2 hours', expires_in => '7 minutes');
select * from test.expiry();
select fetchq.doc_put('rq_expiry', 'a', mode => 'earliest', delay => '1 hour', expires_in => '3 minutes');
select * from test.expiry();
select fetchq.doc_put('rq_expiry', 'a', mode => 'replace', delay => '1 hour');
select * from test.expiry();
select fetchq.doc_put('rq_expiry', 'a', mode => 'replace', due_at => 'infinity', expires_in => '1 hour');
select * from test.expiry();
-- A time in the past: from now on.
select fetchq.doc_put('rq_expiry', 'old', due_at => '2020-01-01', expires_in => '1 hour');
select expires_at - now() between interval '59 minutes' and interval '1 hour' as is_from_now from fetchq.doc_get('rq_expiry', 'old');

-- The setting of the queue: all calls that add documents, from then on.
select fetchq.queue_truncate('rq_expiry');
select fetchq.queue_configure('rq_expiry', '{"expire_after": "1 hour"}') ->> 'expire_after';
select fetchq.queue_settings('rq_expiry') ->> 'expire_after';
select fetchq.doc_put('rq_expiry', 'put'), fetchq.doc_put('rq_expiry', 'own', expires_in => '5 minutes'), fetchq.doc_push('rq_expiry', 'pushed', 0, 0, now(), '{}'),
    fetchq.doc_push('rq_expiry', 0, now(), '(''item'', 0, ''{}'', {DATA})'), fetchq.doc_upsert('rq_expiry', 'upserted', 0, 0, now(), '{}');
select fetchq.doc_append('rq_expiry', '{}') is not null, fetchq.doc_append('rq_expiry', '{}', expires_in => '2 minutes') is not null, count(*) from fetchq.doc_append_many('rq_expiry', '{1,2}');
set fetchq.direct = off;
select count(*) from fetchq.doc_append_many('rq_expiry', '{3,4}');
reset fetchq.direct;
select expires, count(*) from test.expiry() group by 1 order by 1;
select fetchq.queue_configure('rq_expiry', '{"expire_after": null}') ->> 'expire_after';
select fetchq.doc_put('rq_expiry', 'unset');
select expires from test.expiry() where subject = 'unset';

-- In a history an outcome of its own. No dead letter: nothing of it has failed.
select was_created from fetchq.queue_create('rq_expiry_dead');
select fetchq.queue_truncate('rq_expiry');
select from fetchq.queue_configure('rq_expiry', '{"dead_letter": "rq_expiry_dead", "history": {"killed": "1 day"}}');
select fetchq.doc_put('rq_expiry', 'kept', expires_in => '1 minute');
select test.outage();
select * from fetchq.mnt_run('rq_expiry', 100);
select subject, outcome, worker, last_error from fetchq.queue_history('rq_expiry', '{"outcome": "expired"}');
select count(*) from fetchq.docs_list('rq_expiry_dead');
select status, expires_at < now() as is_past from fetchq.doc_get('rq_expiry', 'kept');
select reason, detail from fetchq.doc_explain('rq_expiry', 'kept');
call fetchq.doc_await('rq_expiry', 'kept', '0');
-- The lists leave it there, and doc_revive brings it back. Then it does not expire.
select affected from fetchq.docs_retry('rq_expiry', '{"status": "killed"}');
select fetchq.queue_redrive('rq_expiry');
begin;
select fetchq.doc_revive('rq_expiry', 'kept');
select * from test.expiry();
rollback;
-- The subject is free again.
select fetchq.doc_put('rq_expiry', 'kept', expires_in => '1 minute');
-- A move keeps it, also as if it was put.
select affected from fetchq.docs_move('rq_expiry', 'rq_expiry_dead', '{"all": true}');
select subject, expires from test.expiry('rq_expiry_dead');

-- A put on a document that has expired, and that nobody has killed yet, makes it anew, in every mode: the event is not lost.
select fetchq.queue_truncate('rq_expiry');
select fetchq.queue_truncate('rq_expiry_dead');
select fetchq.doc_put('rq_expiry', s, '{"n": 1}', expires_in => '1 minute') from unnest('{ignored,replaced,merged,listed}'::text[]) s;
select test.outage();
select test.delta('rq_expiry') is not null;
select fetchq.doc_put('rq_expiry', 'ignored', '{"n": 2}'), fetchq.doc_put('rq_expiry', 'replaced', '{"n": 2}', mode => 'replace'), fetchq.doc_put('rq_expiry', 'merged', '{"m": 2}', mode => 'merge', expires_in => '5 minutes');
set fetchq.direct = off;
select * from fetchq.doc_put_many('rq_expiry', '[{"subject": "listed", "payload": {"n": 2}}]');
reset fetchq.direct;
select subject, payload, status, expires_at > now() as expires from fetchq.docs_list('rq_expiry');
select test.delta('rq_expiry');
select test.exact('rq_expiry');
select subject, outcome from fetchq.history where queue = 'rq_expiry' and outcome = 'expired' order by id;
-- What is put on a leased document expires as it says, from when it is due.
select count(*) from fetchq.doc_pick('rq_expiry', 0, 10, '1h');
select fetchq.doc_put('rq_expiry', 'ignored', '{"n": 3}', mode => 'replace', delay => '1 hour', expires_in => '10 minutes'), fetchq.doc_put('rq_expiry', 'replaced', '{"n": 3}', mode => 'replace', expires_in => '10 minutes');
select fetchq.doc_put('rq_expiry', 'ignored', mode => 'debounce', delay => '2 hours', expires_in => '20 minutes');
update fetchq_data.rq_expiry__docs set queued = queued || jsonb_build_object('expires_at', now() - interval '1 second') where subject = 'replaced';
select fetchq.doc_complete('rq_expiry', 'ignored'), fetchq.doc_reject('rq_expiry', 'replaced', 'disk full');
select subject, status, expires from test.expiry() where subject in ('ignored', 'replaced');
select killed_count from fetchq.mnt_run('rq_expiry', 100);

-- An ordered queue: a head that has expired frees its key, and so does a blocked document.
select was_created from fetchq.queue_create('rq_expiry_key', '{"ordered": true, "history": {"completed": null, "killed": null, "dropped": null}}');
select fetchq.doc_put('rq_expiry_key', s, ordering_key => 'k', expires_in => case when s <> 'c' then interval '1 minute' end) from unnest('{a,b,c}'::text[]) s;
select test.outage('rq_expiry_key');
select subject from fetchq.doc_pick('rq_expiry_key', 0, 10, '1h');
select * from fetchq.mnt_run('rq_expiry_key', 100);
select * from test.expiry('rq_expiry_key');
select subject from fetchq.doc_pick('rq_expiry_key', 0, 10, '1h');
select key, unblocked from fetchq.ordering_keys where key = 'k';
-- A cap: documents that have expired need no slot.
select was_created from fetchq.queue_create('rq_expiry_cap', '{"max_active": 1}');
select fetchq.doc_put('rq_expiry_cap', 'a', expires_in => '1 minute'), fetchq.doc_put('rq_expiry_cap', 'b');
select test.outage('rq_expiry_cap');
select subject from fetchq.doc_pick('rq_expiry_cap', 0, 10, '1h');
select * from fetchq.mnt_run('rq_expiry_cap', 100);
select test.exact('rq_expiry_cap');
-- One that is set aside is not killed.
select fetchq.queue_truncate('rq_expiry_cap');
select fetchq.doc_put('rq_expiry_cap', 'aside', expires_in => '1 minute');
update fetchq_data.rq_expiry_cap__docs set lock_upgrade = now(), expires_at = now() - interval '1 second';
select * from fetchq.mnt_run('rq_expiry_cap', 100);

-- What is refused.
select test.error($$select fetchq.doc_put('rq_expiry', 'x', expires_in => '-1 s')$$);
select test.error($$select fetchq.doc_put('rq_expiry', 'x', expires_in => '0')$$);
select test.error($$select fetchq.doc_put('rq_expiry', 'x', expires_in => '1000000 years')$$);
select test.error($$select * from fetchq.doc_put_many('rq_expiry', '[{"subject": "x"}, {"subject": "y", "expires_in": 5}]')$$);
select test.error($$select * from fetchq.doc_put_many('rq_expiry', '[{"subject": "x", "expires_in": "-5 s"}]')$$);
select test.error($$select * from fetchq.doc_put_many('rq_expiry', '[{"subject": "x", "expires_in": "soon"}]')$$);
select test.error($$select fetchq.queue_configure('rq_expiry', '{"expire_after": "0"}')$$);
select test.error($$select fetchq.queue_configure('rq_expiry', '{"max_run": 5}')$$);
select count(fetchq.queue_drop(q)) from unnest('{rq_expiry,rq_expiry_dead,rq_expiry_key,rq_expiry_cap}'::text[]) q;
drop function test.expiry, test.outage;
