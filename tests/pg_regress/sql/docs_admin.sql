-- Bulk administration: retry, kill, drop, move and set the priority of filtered documents.
-- Documents that are not active cause a warning.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_adm');
select was_created from fetchq.queue_create('rq_adm_2');
create view test.docs as
select subject, version, priority, status, attempts, next_iteration <= now() as due,
    lease is not null as leased, worker_session is not null as held, last_error, ordering_key, payload
from fetchq_data.rq_adm__docs order by seq;
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_adm');
    perform fetchq.queue_truncate('rq_adm_2');
    perform fetchq.doc_push('rq_adm', 'active', 0, 9, '2020-01-01', '{"n": 1}');
    perform fetchq.doc_push('rq_adm', 'done', 0, 9, '2020-01-01', '{"n": 2}');
    perform fetchq.doc_push('rq_adm', 'dead', 0, 9, '2020-01-01', '{"n": 3}');
    perform fetchq.doc_pick('rq_adm', 0, 3, '1h');
    perform fetchq.doc_complete('rq_adm', 'done');
    perform fetchq.doc_kill('rq_adm', 'dead');
    update fetchq_data.rq_adm__docs set last_error = 'disk full' where subject = 'dead';
    perform fetchq.doc_push('rq_adm', 'late-1', 0, 1, '2970-01-01', '{"n": 4, "k": {"a": 1, "b": 2}}');
    perform fetchq.doc_push('rq_adm', 'late-2', 1, 2, '2970-01-01', '{"n": 5}');
    perform fetchq.doc_push('rq_adm', 'due-1', 0, 3, '2020-01-01', '{"n": 6}');
    perform fetchq.doc_push('rq_adm', 'due-2', 2, 4, '2020-01-01', '{"n": 7}');
    perform fetchq.doc_push('rq_adm', 'waits', 3, 5, '2020-01-01', '{"n": 8}');
    perform fetchq.doc_pick('rq_adm', 3, 1, '1h');
    update fetchq_data.rq_adm__docs set status = 1, lock_upgrade = null, ordering_key = 'k' where subject = 'waits';
    perform fetchq.metric_reset('rq_adm');
    perform fetchq.metric_reset('rq_adm_2');
    perform test.delta('rq_adm');
    perform test.delta('rq_adm_2');
end $$;
begin;
select test.fill();
select * from test.docs;

-- Retry: planned, blocked and killed documents; a second call finds nothing.
select * from fetchq.docs_retry('rq_adm', '{}', 1000, true);
select test.delta('rq_adm');
select * from fetchq.docs_retry('rq_adm');
select test.delta('rq_adm'), test.exact('rq_adm');
select * from test.docs;
select * from fetchq.docs_retry('rq_adm');
-- Completed documents only when the filter names them, active ones never.
select * from fetchq.docs_retry('rq_adm', '{"status": ["completed", "active"]}');
select test.delta('rq_adm'), test.exact('rq_adm');
select * from test.docs where subject in ('done', 'active');

-- Kill.
select test.fill();
select * from fetchq.docs_kill('rq_adm', '{"all": true}', dry_run => true);
select * from fetchq.docs_kill('rq_adm', '{"status": "planned"}');
select * from fetchq.docs_kill('rq_adm', '{"all": true}');
select test.delta('rq_adm'), test.exact('rq_adm');
select * from fetchq.docs_kill('rq_adm', '{"all": true}');
-- An active document when the filter names it: its worker learns of it.
select * from fetchq.docs_kill('rq_adm', '{"status": ["active", "killed"]}');
select test.delta('rq_adm'), test.exact('rq_adm');
select * from test.docs;
select * from fetchq.doc_complete('rq_adm', 'active');

-- Drop.
select test.fill();
select * from fetchq.docs_drop('rq_adm', '{"status": ["completed", "killed"]}', dry_run => true);
select * from fetchq.docs_drop('rq_adm', '{"status": ["completed", "killed"]}');
select test.delta('rq_adm'), test.exact('rq_adm');
select * from fetchq.docs_drop('rq_adm', '{"all": true}');
select test.delta('rq_adm'), test.exact('rq_adm');
select subject from test.docs;
select * from fetchq.docs_drop('rq_adm', '{"status": "active"}');
select test.delta('rq_adm'), test.exact('rq_adm');

-- Priority: planned and pending documents, once.
select test.fill();
select * from fetchq.docs_set_priority('rq_adm', 4, dry_run => true);
select * from fetchq.docs_set_priority('rq_adm', 4);
select * from fetchq.docs_set_priority('rq_adm', 4);
select subject, priority from test.docs;
select test.delta('rq_adm'), test.exact('rq_adm');
-- The documents are picked in the new order.
select * from fetchq.docs_set_priority('rq_adm', 9, '{"subject_like": "late%"}');
select * from fetchq.docs_set_priority('rq_adm', 9, '{"subject": "due-2"}');
select fetchq.doc_push('rq_adm', 'later', 2, 5, now(), '{}');
select subject from fetchq.doc_pick('rq_adm', 2, 9, '5m');

-- Move: the documents keep their status, but not their attempts.
select test.fill();
select fetchq.doc_push('rq_adm_2', 'due-1', '{"old": true}');
select test.delta('rq_adm_2');
select * from fetchq.docs_move('rq_adm', 'rq_adm_2', '{"all": true}', dry_run => true);
select * from fetchq.docs_move('rq_adm', 'rq_adm_2', '{"all": true}', max_docs => 3);
select * from fetchq.docs_move('rq_adm', 'RQ_ADM_2', '{"all": true}');
select test.delta('rq_adm'), test.exact('rq_adm');
select test.delta('rq_adm_2'), test.exact('rq_adm_2');
select subject from test.docs;
select subject, version, priority, status, attempts, iterations, next_iteration <= now() as due, payload, last_error,
    ordering_key, lease is not null as keeps_lease, seq - first_value(seq) over (order by seq) as seq
from fetchq_data.rq_adm_2__docs order by seq;
select * from fetchq.docs_move('rq_adm', 'rq_adm_2', '{"all": true}');
-- Moved documents can be picked.
select subject from fetchq.doc_pick('rq_adm_2', 2, 1, '5m');
-- They can be moved back.
select * from fetchq.docs_move('rq_adm_2', 'rq_adm', '{"status": ["completed", "killed"]}');
select test.delta('rq_adm') is not null as looked, test.exact('rq_adm'), test.exact('rq_adm_2');

-- Filters.
select test.fill();
create function test.chosen(filter jsonb) returns text language plpgsql as $$
declare
    told text;
    all_n int;
begin
    select affected into all_n from fetchq.docs_drop('rq_adm', filter, dry_run => true);
    perform fetchq.docs_drop('rq_adm', filter);
    select string_agg(s, ' ' order by s) into told
    from unnest('{active,done,dead,late-1,late-2,due-1,due-2,waits}'::text[]) s
    where s not in (select subject from fetchq_data.rq_adm__docs);
    perform test.fill();
    return all_n || ': ' || coalesce(told, '');
end $$;
select f as filter, test.chosen(f::jsonb) from unnest(array[
    '{"all": true}', '{"status": "pending"}', '{"status": ["planned", "killed"]}', '{"status": []}', '{"version": 0}', '{"version": [1, 2]}',
    '{"priority": 3}', '{"priority": [1, 5]}', '{"min_priority": 4}', '{"max_priority": 2}', '{"min_priority": 2, "max_priority": 4}',
    '{"min_attempts": 1}', '{"older_than": "1 hour"}', '{"newer_than": "1 hour"}', '{"payload": {"n": 4}}', '{"payload": {"k": {"b": 2}}}',
    '{"payload": null}', '{"all": true, "payload": {}}', '{"subject_like": "due-%"}', '{"subject": "due-1"}', '{"subject": ["due-1", "late-2", "x"]}', '{"subject": "d_e-1"}', '{"subject_like": "d_e-1"}', '{"error_like": "%full"}', '{"ordering_key": "k"}',
    '{"subject_like": "due%", "version": 2}', '{"status": "pending", "version": [0, 2], "min_priority": 4}']) with ordinality f (f, n) order by n;
commit;
-- By age, the oldest first, up to the limit.
update fetchq_data.rq_adm__docs set created_at = now() - interval '2 days' where subject like 'late%';
select * from fetchq.docs_drop('rq_adm', '{"older_than": "1 day"}', 1);
select * from fetchq.docs_drop('rq_adm', '{"older_than": "1 day"}', 0);
select subject from test.docs where subject like 'late%';
select * from fetchq.docs_drop('rq_adm', '{"newer_than": "1 day", "subject_like": "late%"}');
-- A document that is being upgraded does not change.
update fetchq_data.rq_adm__docs set lock_upgrade = now() where subject = 'due-1';
select * from fetchq.docs_kill('rq_adm', '{"subject": "due-1"}');
update fetchq_data.rq_adm__docs set lock_upgrade = null where subject = 'due-1';

-- By absolute times, and by how long the run took: of a completed document, and so far of an active one.
begin;
select test.fill();
update fetchq_data.rq_adm__docs set created_at = '2026-01-01 12:00+00' where subject = 'late-1';
update fetchq_data.rq_adm__docs set last_iteration = '2026-02-01 12:00+00', picked_at = '2026-02-01 11:00+00' where subject = 'done';
update fetchq_data.rq_adm__docs set last_iteration = '2026-02-02 12:00+00' where subject in ('dead', 'due-1');
update fetchq_data.rq_adm__docs set picked_at = now() - interval '10 minutes' where subject = 'active';
select f as filter, array(select subject from fetchq.docs_list('rq_adm', f::jsonb)) as subjects from unnest(array[
    '{"created_before": "2026-01-01 12:00:01+00"}', '{"created_before": "2026-01-01 12:00+00"}', '{"created_since": "2026-01-01 12:00+00", "created_before": "2026-01-02"}',
    '{"settled_since": "2026-02-01", "settled_before": "2026-03-01"}', '{"settled_before": "2026-02-02"}',
    '{"min_ran": "5 minutes"}', '{"min_ran": "30 minutes"}', '{"max_ran": "30 minutes"}', '{"min_ran": "1 hour", "max_ran": "1 hour"}']) with ordinality f (f, n) order by n;
rollback;

-- Errors name the invalid key or value.
select f as filter, test.error(format('select fetchq.docs_kill(%L, %L)', 'rq_adm', f)) from unnest(array[
    '[]', '"killed"', 'null', '{"stauts": "killed"}', '{"status": "dead"}', '{"status": -1}', '{"status": null}', '{"version": "1"}',
    '{"version": 1.5}', '{"priority": 3000000000}', '{"min_priority": [1]}', '{"older_than": 5}', '{"older_than": "soon"}',
    '{"newer_than": "-1 hour"}', '{"subject": ["a", 1]}', '{"subject_like": ["a"]}', '{"error_like": {}}', '{"error": "x"}', '{"created_since": 5}',
    '{"created_before": "soon"}', '{"settled_since": "-1 hour"}', '{"settled_before": null}', '{"min_ran": 5}', '{"max_ran": "-1 s"}', '{"ordering_key": 1}', '{"min_attempts": true}'])
    with ordinality f (f, n) order by n;
-- What cannot be undone needs a condition, or says that it means every document.
select test.error(c) from unnest(array[
    $$select fetchq.docs_kill('rq_adm')$$, $$select fetchq.docs_drop('rq_adm', '{}')$$, $$select fetchq.docs_move('rq_adm', 'rq_adm_2')$$,
    $$select fetchq.docs_drop('rq_adm', '{"payload": {}}')$$, $$select fetchq.docs_drop('rq_adm', dry_run => true)$$,
    $$select fetchq.docs_drop('rq_adm', '{"all": false}')$$, $$select fetchq.docs_drop('rq_adm', '{"all": null}')$$, $$select fetchq.docs_drop('rq_adm', '{"all": "true"}')$$]) c;
select fetchq.docs_drop('rq_adm', '{"all": true, "subject": "nobody"}') as all_of_a_condition, fetchq.docs_retry('rq_adm', dry_run => true) as retry,
    fetchq.docs_set_priority('rq_adm', 0, dry_run => true) as priority, fetchq.docs_kill('rq_adm', '{"subject_like": "%"}', dry_run => true) as any_subject;
select test.error($$select fetchq.docs_kill('rq_nope', '{"all": true}')$$);
select test.error($$select fetchq.docs_move('rq_adm', 'rq_nope', '{"all": true}')$$);
select test.error($$select fetchq.docs_move('rq_adm', 'rq_adm', '{"all": true}')$$);
select test.error($$select fetchq.docs_kill('rq_adm', null)$$);
select test.error($$select fetchq.docs_kill('rq_adm', '{"all": true}', null)$$);
select test.error($$select fetchq.docs_kill('rq_adm', '{"all": true}', -1)$$);
select test.error($$select fetchq.docs_kill('rq_adm', '{"all": true}', 1, null)$$);
select test.error($$select fetchq.docs_set_priority('rq_adm', null)$$);

-- A document whose subject exists in the other queue stays.
-- A trigger that keeps the rows undoes the move.
select fetchq.queue_truncate('rq_adm_2');
create function test.keep() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger keep before delete on fetchq_data.rq_adm__docs for each row execute function test.keep();
select test.error($$select fetchq.docs_move('rq_adm', 'rq_adm_2', '{"all": true}')$$);
select count(*) from fetchq_data.rq_adm_2__docs;
select * from fetchq.docs_drop('rq_adm', '{"all": true}');
select test.exact('rq_adm'), test.exact('rq_adm_2');

-- doc_kill and doc_drop take one that nobody has leased as the lists do. With a lease number they do not.
begin;
drop trigger keep on fetchq_data.rq_adm__docs;
set local fetchq.strict = on;
select test.fill();
select fetchq.doc_kill('rq_adm', 'late-1'), fetchq.doc_kill('rq_adm', 'due-1', '{"new": 1}', message => 'not wanted', details => '{"by": "me"}'),
    fetchq.doc_drop('rq_adm', 'late-2'), fetchq.doc_drop('rq_adm', 'done'), fetchq.doc_drop('rq_adm', 'dead');
select subject, status, attempts, last_error, payload, last_iteration = now() as settled_now from fetchq_data.rq_adm__docs where subject ~ 'late|due|done|dead' order by 1;
select subject, message, details, attempt from fetchq_data.rq_adm__logs;
select test.exact('rq_adm');
select test.error(c) from unnest(array[
    $$select fetchq.doc_kill('rq_adm', 'late-1')$$, $$select fetchq.doc_kill('rq_adm', 'nobody')$$, $$select fetchq.doc_drop('rq_adm', 'nobody')$$,
    $$select fetchq.doc_kill('rq_adm', 'waits', lease => 1)$$, $$select fetchq.doc_drop('rq_adm', 'waits', lease => 1)$$, $$select fetchq.doc_complete('rq_adm', 'waits')$$]) c;
select from fetchq.queue_configure('rq_adm', '{"history": {"killed": "1 day", "dropped": "1 day"}}');
select fetchq.doc_kill('rq_adm', 'waits', message => 'nobody wants it'), fetchq.doc_drop('rq_adm', 'late-1'), fetchq.doc_drop('rq_adm', 'due-1');
select subject, outcome, last_error, worker is not null as named, ran from fetchq.queue_history('rq_adm') order by subject;
select test.exact('rq_adm');
-- As fetchq 4 has it.
set local fetchq.strict = off;
select fetchq.doc_put('rq_adm', 'again'), fetchq.doc_kill('rq_adm', 'again'), fetchq.doc_drop('rq_adm', 'again');
rollback;

-- Documents of one ordering key: the next one becomes the head, and their order stays.
drop trigger keep on fetchq_data.rq_adm__docs;
select fetchq.queue_truncate('rq_adm'), fetchq.queue_truncate('rq_adm_2');
select from fetchq.queue_configure('rq_adm', '{"ordered": true}') one, fetchq.queue_configure('rq_adm_2', '{"ordered": true}');
select fetchq.doc_put('rq_adm', s, ordering_key => 'k', due_at => '2020-01-01') from unnest('{d,c,b,a,e}'::text[]) s;
select subject, status, lock_upgrade from fetchq_data.rq_adm__docs order by seq;
select fetchq.docs_retry('rq_adm');
select fetchq.docs_kill('rq_adm', '{"ordering_key": "k"}', 1);
select fetchq.docs_set_priority('rq_adm', 3, '{"subject": "b"}');
select subject, status, priority, lock_upgrade from fetchq_data.rq_adm__docs order by seq;
select subject from fetchq.doc_pick('rq_adm', 9);
select fetchq.docs_drop('rq_adm', '{"status": "active"}');
select fetchq.docs_move('rq_adm', 'rq_adm_2', '{"status": "pending"}');
select subject, status, lock_upgrade from fetchq_data.rq_adm__docs order by seq;
select subject, status, lock_upgrade from fetchq_data.rq_adm_2__docs order by seq;
select subject from fetchq.doc_pick('rq_adm_2', 9);
select from fetchq.queue_configure('rq_adm_2', '{"dead_letter": "rq_adm"}');
select fetchq.doc_kill('rq_adm_2', 'b');
select subject from fetchq.doc_pick('rq_adm_2', 9);
select fetchq.queue_redrive('rq_adm', 9, '{"status": "pending"}');
select subject, status, lock_upgrade from fetchq_data.rq_adm_2__docs order by seq;
select from fetchq.queue_configure('rq_adm_2', '{"history": {"completed": "0", "killed": "0", "dropped": "0"}}');
select fetchq.doc_complete('rq_adm_2', 'a');
select subject, status, lock_upgrade from fetchq_data.rq_adm_2__docs order by seq;
select test.exact('rq_adm'), test.exact('rq_adm_2');
select count(*) from fetchq.ordering_keys;

drop view test.docs;
drop function test.fill(), test.chosen(jsonb);
select was_dropped from fetchq.queue_drop('rq_adm');
select was_dropped from fetchq.queue_drop('rq_adm_2');
drop function test.keep();
