-- What is finished can be revived wherever it lies: out of the history, once.
select from fetchq.queue_create('rq_revive', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}, "max_attempts": 1}');
create view test.docs as select subject, status, attempts, iterations, payload, headers, ordering_key, max_attempts, last_error, created_at = '2026-01-01' as as_created,
    last_iteration is not null as was_settled from fetchq_data.rq_revive__docs order by subject;
create function test.fill() returns text language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_revive', true);
    perform fetchq.doc_put('rq_revive', s, jsonb_build_object('n', n), version => 2, priority => n::int, ordering_key => 'k' || n, max_attempts => 4, headers => '{"h": 1}')
        from unnest('{dead,done,dropped,expired,pending,rejected,cancelled}'::text[]) with ordinality u (s, n);
    update fetchq_data.rq_revive__docs set created_at = '2026-01-01';
    perform fetchq.doc_lease('rq_revive', version => 2, max_docs => 1) from generate_series(1, 7);
    perform fetchq.doc_kill('rq_revive', 'dead', lease => lease, message => 'why') from fetchq_data.rq_revive__docs where subject = 'dead';
    perform fetchq.doc_complete('rq_revive', 'done', lease => lease, result => '7') from fetchq_data.rq_revive__docs where subject = 'done';
    perform fetchq.doc_drop('rq_revive', 'dropped', lease => lease) from fetchq_data.rq_revive__docs where subject = 'dropped';
    update fetchq_data.rq_revive__docs set attempts = 4 where subject in ('rejected', 'expired');
    perform fetchq.doc_reject('rq_revive', 'rejected', 'no luck', lease => lease) from fetchq_data.rq_revive__docs where subject = 'rejected';
    perform fetchq.doc_snooze('rq_revive', subject, lease => lease) from fetchq_data.rq_revive__docs where subject in ('pending', 'cancelled');
    perform fetchq.doc_cancel('rq_revive', 'cancelled');
    update fetchq_data.rq_revive__docs set next_iteration = now() - interval '1 minute' where subject = 'expired';
    perform fetchq.mnt_run('rq_revive', 10);
    perform test.delta('rq_revive');
    return (select string_agg(subject || ' ' || outcome, ', ' order by subject) from fetchq.queue_history('rq_revive'));
end $$;
select test.fill();
-- docs_retry: killed ones, and completed ones if it is asked for them. They have all attempts again.
begin;
select fetchq.docs_retry('rq_revive', dry_run => true) as all, fetchq.docs_retry('rq_revive', dry_run => true, max_docs => 2) as two, fetchq.docs_retry('rq_revive', '{"status": "pending"}', dry_run => true) as pending,
    fetchq.docs_retry('rq_revive', '{"status": "completed"}', dry_run => true) as completed, fetchq.docs_retry('rq_revive', '{"error_like": "no %"}', dry_run => true) as by_error;
select fetchq.docs_retry('rq_revive', '{"error_like": "no %"}');
select fetchq.docs_retry('rq_revive', max_docs => 2);
select fetchq.docs_retry('rq_revive');
select fetchq.docs_retry('rq_revive', '{"status": "completed", "payload": {"n": 2}}');
select fetchq.docs_retry('rq_revive', '{"status": ["completed", "killed"]}');
select test.delta('rq_revive'), test.exact('rq_revive');
table test.docs;
select string_agg(subject || ' ' || outcome, ', ' order by subject) from fetchq.queue_history('rq_revive');
select count(*) from fetchq.doc_lease('rq_revive', 10, version => 2);
rollback;
-- queue_redrive: what was killed.
begin;
select fetchq.queue_redrive('rq_revive', dry_run => true), fetchq.queue_redrive('rq_revive', 1, dry_run => true), fetchq.queue_redrive('rq_revive', filter => '{"subject": ["dead", "done"]}', dry_run => true);
select fetchq.queue_redrive('rq_revive', 3);
select fetchq.queue_redrive('rq_revive'), fetchq.queue_redrive('rq_revive');
select subject, status, attempts from test.docs;
select test.delta('rq_revive'), test.exact('rq_revive');
rollback;
-- doc_revive: whatever was settled.
begin;
select s, fetchq.doc_revive('rq_revive', s) from unnest('{done,dead,dropped,cancelled}'::text[]) s;
select fetchq.doc_revive('rq_revive', 'rejected', due_at => '2100-01-01');
select subject, status, attempts from test.docs;
select test.delta('rq_revive'), test.exact('rq_revive');
select test.error(c) from unnest(array[$$select fetchq.doc_revive('rq_revive', 'done')$$, $$select fetchq.doc_revive('rq_revive', 'nobody')$$]) c;
rollback;
-- Only the newest entry of a subject counts, and none while a document has the subject.
begin;
select fetchq.doc_put('rq_revive', 'dead', '{"n": "new"}');
select fetchq.docs_retry('rq_revive', '{"subject": "dead"}'), fetchq.queue_redrive('rq_revive', filter => '{"subject": "dead"}');
select test.error($$select fetchq.doc_revive('rq_revive', 'dead')$$);
select from fetchq.doc_lease('rq_revive');
select fetchq.doc_complete('rq_revive', 'dead', lease => lease) from fetchq_data.rq_revive__docs where subject = 'dead';
select fetchq.docs_retry('rq_revive', '{"subject": "dead"}'), fetchq.queue_redrive('rq_revive', filter => '{"subject": "dead"}');
select fetchq.doc_revive('rq_revive', 'dead');
select subject, payload, status from test.docs where subject = 'dead';
select outcome, payload from fetchq.queue_history('rq_revive', '{"subject": "dead"}');
select test.exact('rq_revive');
rollback;
-- Nothing says that there is no such document.
select test.error(c) from unnest(array[
    $$select fetchq.doc_complete('rq_revive', 'done')$$, $$select fetchq.doc_complete('rq_revive', 'done', lease => 7)$$, $$select fetchq.doc_reject('rq_revive', 'dead', 'again')$$,
    $$select fetchq.doc_kill('rq_revive', 'cancelled')$$, $$select fetchq.doc_drop('rq_revive', 'dropped')$$, $$select fetchq.doc_snooze('rq_revive', 'expired', lease => 7)$$,
    $$select fetchq.doc_set_due('rq_revive', 'done', now())$$, $$select fetchq.doc_set_priority('rq_revive', 'dead', 3)$$, $$select fetchq.doc_complete('rq_revive', 'nobody')$$]) c;
select s, c.* from unnest('{dead,done,dropped,expired,nobody}'::text[]) s, fetchq.doc_cancel('rq_revive', s) c;
select * from fetchq.docs_settle('rq_revive', '[{"subject": "done", "lease": 7, "action": "complete"}, {"subject": "dead", "action": "kill"}, {"subject": "dropped", "lease": 7, "action": "drop"}, {"subject": "nobody", "action": "drop"}]');
select s, (select status from fetchq.doc_get('rq_revive', s)) from unnest('{dead,done,dropped,expired,cancelled,nobody}'::text[]) s;
begin;
set local fetchq.strict = off;
select fetchq.doc_complete('rq_revive', 'done');
rollback;
-- An order of keys, and a cap: what comes back waits for its turn.
begin;
select from fetchq.queue_configure('rq_revive', '{"ordered": true}');
update fetchq_data.rq_revive__history set ordering_key = 'k';
select fetchq.docs_retry('rq_revive', '{"status": ["completed", "killed"]}');
select count(*), count(lock_upgrade) as blocked from fetchq_data.rq_revive__docs where ordering_key = 'k';
select test.exact('rq_revive');
rollback;
-- Who works on the queue can revive, and a reader cannot.
create role rq_revive_worker;
create role rq_revive_reader;
select fetchq.queue_grant('rq_revive', 'rq_revive_worker', 'worker'), fetchq.queue_grant('rq_revive', 'rq_revive_reader', 'reader');
grant usage on schema test to public;
grant execute on function test.error(text) to public;
begin;
set local role rq_revive_worker;
select fetchq.docs_retry('rq_revive', '{"subject": "dead"}'), fetchq.doc_revive('rq_revive', 'done');
set local role rq_revive_reader;
select test.error(c) from unnest(array[$$select fetchq.docs_retry('rq_revive')$$, $$select fetchq.doc_revive('rq_revive', 'expired')$$, $$select fetchq.queue_redrive('rq_revive')$$]) c;
rollback;
drop owned by rq_revive_worker, rq_revive_reader;
drop role rq_revive_worker, rq_revive_reader;
drop view test.docs;
select was_dropped from fetchq.queue_drop('rq_revive');
drop function test.fill();
