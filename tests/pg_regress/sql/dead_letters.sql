-- Dead letters: documents killed by a failure move to another queue, and can be redriven.
-- Documents that are not active cause a warning.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_dead');
select was_created from fetchq.queue_create('rq_letters');
select was_created from fetchq.queue_create('rq_third');
create view test.docs as
select subject, version, priority, status, attempts, iterations, next_iteration <= now() as due, payload, last_error,
    ordering_key, max_attempts, origin - '{created_at,killed_at,queue_created_at}'::text[] as origin,
    (origin ->> 'killed_at')::timestamptz = now() as killed_now,
    origin is null or (origin ->> 'created_at')::timestamptz <= now() as was_created
from fetchq_data.rq_dead__docs order by subject;
create view test.letters as
select subject, version, priority, status, attempts, iterations, next_iteration <= now() as due, payload, last_error,
    ordering_key, max_attempts, origin - '{created_at,killed_at,queue_created_at}'::text[] as origin,
    (origin ->> 'killed_at')::timestamptz = now() as killed_now
from fetchq_data.rq_letters__docs order by subject;
create function test.look() returns setof text language sql as $$
    select q || ': ' || test.delta(q) || ' / ' || test.exact(q) from unnest('{rq_dead,rq_letters}'::text[]) q $$;
create function test.pick() returns text language sql as $$
    select string_agg(subject, ' ') from fetchq.doc_pick('rq_dead', 0, 100, '1h') $$;

-- Setting the dead-letter queue.
select test.error($$select from fetchq.queue_configure('rq_dead', '{"dead_letter": "rq_nope"}')$$);
select test.error($$select from fetchq.queue_configure('rq_nope', '{"dead_letter": "rq_dead"}')$$);
select test.error($$select from fetchq.queue_configure('rq_dead', '{"dead_letter": "RQ_dead"}')$$);
select test.error($$select from fetchq.queue_configure('rq_dead', '{"dead_letter": "no queue"}')$$);
select test.error($$select from fetchq.queue_configure(null, '{"dead_letter": "rq_dead"}')$$);
select from fetchq.queue_configure('rq_dead', '{"dead_letter": "RQ_letters"}');
select dead_letter from fetchq.queues where name = 'rq_dead';

-- The last attempt is rejected.
begin;
select fetchq.queue_set_max_attempts('rq_dead', 2);
select fetchq.doc_push('rq_dead', 'a', 0, 7, '2020-01-01', '{"n": 1}');
update fetchq_data.rq_dead__docs set ordering_key = 'k' where subject = 'a';
select test.look();
select test.pick();
select fetchq.doc_reject('rq_dead', 'a', 'first', '{}');
update fetchq_data.rq_dead__docs set next_iteration = now();
select test.pick();
select test.look();
select fetchq.doc_reject('rq_dead', 'a', 'disk full', '{}');
select * from test.docs;
select * from test.letters;
select test.look();
commit;
select subject, message from fetchq_data.rq_dead__logs order by id;
-- The subject is free again; the next dead letter of that subject gets another subject.
begin;
select fetchq.doc_push('rq_dead', 'a', '{"n": 2}');
update fetchq_data.rq_dead__docs set max_attempts = 1;
select test.pick();
select fetchq.doc_reject('rq_dead', 'a', 'again', '{}');
select count(*), count(*) filter (where subject = 'a'), count(distinct origin ->> 'subject'), count(*) filter (where length(subject) = 13)
from fetchq_data.rq_letters__docs;
-- Killed by the worker, with a payload.
select fetchq.doc_push('rq_dead', 'k', '{"n": 3}');
select test.pick();
select test.look();
select fetchq.doc_kill('rq_dead', 'k', '{"n": 4}');
select * from test.letters where subject = 'k';
select test.look();
select fetchq.doc_kill('rq_dead', 'k');
commit;
-- A dead letter keeps the time at which it was created, and was settled when it was moved.
begin;
select fetchq.doc_push('rq_dead', 'old');
update fetchq_data.rq_dead__docs set created_at = '2026-01-01', max_attempts = 1;
select test.pick();
select fetchq.doc_reject('rq_dead', 'old', 'no luck', '{}');
select array(select subject from fetchq.docs_list('rq_letters', '{"created_since": "2026-01-01", "created_before": "2026-01-02"}')) as by_creation,
    array(select subject from fetchq.docs_list('rq_letters', jsonb_build_object('settled_since', now()))) as by_death,
    exists (select from fetchq.docs_list('rq_letters', jsonb_build_object('settled_before', now())) where subject = 'old') as earlier;
select fetchq.queue_redrive('rq_dead', filter => '{"settled_before": "2026-01-02"}'), fetchq.queue_redrive('rq_dead', filter => jsonb_build_object('settled_since', now()));
select created_at = '2026-01-01' as as_created, last_iteration from fetchq_data.rq_dead__docs where subject = 'old';
rollback;
-- Leases expire: maintenance moves many documents at once.
begin;
select fetchq.doc_push('rq_dead', 'e' || i, 0, 0, now(), jsonb_build_object('i', i)) from generate_series(1, 5) i;
update fetchq_data.rq_dead__docs set max_attempts = 1 where subject <> 'e5';
select count(*) from fetchq.doc_pick('rq_dead', 0, 100, '1h');
update fetchq_data.rq_dead__docs set next_iteration = now() - interval '1 minute';
select test.look();
select * from fetchq.mnt_run('rq_dead', 100);
select * from test.docs;
select * from test.letters where subject ~ '^e';
select test.look();
rollback;
begin;
select fetchq.doc_push('rq_dead', 'm' || i) from generate_series(1, 3) i;
update fetchq_data.rq_dead__docs set max_attempts = 1;
select count(*) from fetchq.doc_pick('rq_dead', 0, 100, '1h');
update fetchq_data.rq_dead__docs set next_iteration = now() - interval '1 minute';
select test.look();
select * from fetchq.mnt_mark_dead('rq_dead', 2);
select test.look();
rollback;
-- Direct changes and statements have the same result.
begin;
set local fetchq.direct = off;
select fetchq.doc_push('rq_dead', 's');
update fetchq_data.rq_dead__docs set max_attempts = 1;
select test.pick();
select test.look();
select fetchq.doc_reject('rq_dead', 's', 'no luck', '{}');
select test.look();
select subject, last_error, origin ->> 'error' from fetchq_data.rq_letters__docs where subject = 's';
rollback;

-- A dead letter that fails again keeps both origins.
begin;
select from fetchq.queue_configure('rq_letters', '{"dead_letter": "rq_third"}');
select fetchq.queue_set_max_attempts('rq_letters', 1);
select subject from fetchq.doc_pick('rq_letters', 0, 1, '1h');
select fetchq.doc_reject('rq_letters', 'a', 'twice', '{}');
select subject, last_error, origin ->> 'queue' as queue, origin -> 'origin' ->> 'queue' as before, origin -> 'origin' ->> 'error' as error
from fetchq_data.rq_third__docs;
select * from fetchq.queue_redrive('rq_third');
select subject, last_error, origin ->> 'queue' as queue, origin ->> 'error' as error from fetchq_data.rq_letters__docs where subject = 'a';
select test.exact('rq_letters'), test.exact('rq_third');
rollback;

-- Redrive: called with the queue's own name, bounded, oldest first.
select test.look();
begin;
select * from fetchq.queue_redrive('rq_dead', 1);
select subject, status, attempts, iterations, last_error, origin, ordering_key, created_at < now() as is_old, payload from fetchq_data.rq_dead__docs;
select test.look();
-- The other 'a' has to wait, and a notice reports it.
select * from fetchq.queue_redrive('rq_dead');
select * from fetchq.queue_redrive('rq_dead');
select subject, payload from fetchq_data.rq_dead__docs order by seq;
select origin ->> 'subject' from fetchq_data.rq_letters__docs;
select test.look();
select test.pick();
select fetchq.doc_complete('rq_dead', 'a');
select fetchq.docs_drop('rq_dead', '{"subject": "a"}');
select * from fetchq.queue_redrive('rq_dead', 100, '{"payload": {"n": 7}}');
select * from fetchq.queue_redrive('rq_dead', 100, '{"payload": {"n": 2}}');
select subject, status, payload from fetchq_data.rq_dead__docs order by seq;
rollback;
-- A dry run says how many would come back, and changes nothing.
begin;
select fetchq.queue_redrive('rq_dead', 1, dry_run => true) as one, fetchq.queue_redrive('rq_dead', dry_run => true) as all, fetchq.queue_redrive('rq_letters', dry_run => true) as letters,
    fetchq.queue_redrive('rq_letters', 0, dry_run => true) as none, fetchq.queue_redrive('rq_dead', 100, '{"payload": {"n": 7}}', true) as filtered, fetchq.queue_redrive('rq_third', dry_run => true) as third;
select test.look();
-- What it says is what comes back, also where there are killed documents and many dead letters.
select from fetchq.queue_configure('rq_dead', '{"history": {"killed": null}}');
select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created from fetchq.queues where name = 'rq_dead' \gset
insert into fetchq_data.rq_letters__docs (subject, status, origin) select 'many-' || i, 1, jsonb_build_object('queue', 'rq_dead', 'queue_created_at', :'created', 'subject', 'back-' || i % 1100) from generate_series(1, 1200) i;
insert into fetchq_data.rq_dead__docs (subject, status) values ('back-7', 3), ('killed-1', -1), ('killed-2', -1);
select fetchq.queue_redrive('rq_dead', 1000000, dry_run => true) as said, fetchq.queue_redrive('rq_dead', 600, dry_run => true) as said_of_600, fetchq.queue_redrive('rq_letters', 1000000, dry_run => true) as said_of_letters;
savepoint before;
select fetchq.queue_redrive('rq_letters', 1000000) as came_back;
rollback to before;
select fetchq.queue_redrive('rq_dead', 600) as came_back;
rollback to before;
select fetchq.queue_redrive('rq_dead', 1000000) as came_back, fetchq.queue_redrive('rq_dead', 1000000, dry_run => true) as said_then;
rollback;
select test.error($$select fetchq.queue_redrive('rq_nope', dry_run => true)$$);
select test.error($$select fetchq.queue_redrive('rq_dead', -1, dry_run => true)$$);
-- The dead-letter queues of all queues.
begin;
select * from fetchq.dead_letters where queue ~ '^rq_';
update fetchq.queues set dead_letter = 'rq_none' where name = 'rq_third';
create role rq_dead_reader;
select fetchq.queue_grant('rq_dead', 'rq_dead_reader', 'reader');
set local role rq_dead_reader;
select queue, dead_letter_queue, does_exist, documents from fetchq.dead_letters;
reset role;
select queue, dead_letter_queue, does_exist, documents from fetchq.dead_letters where queue = 'rq_third';
rollback;
-- Called with the dead-letter queue.
begin;
select * from fetchq.queue_redrive('rq_letters', 2);
select * from fetchq.queue_redrive('rq_letters', 100);
select subject, status from fetchq_data.rq_dead__docs order by seq;
rollback;
-- Documents that were killed and stayed are redriven too; a filter can choose them.
begin;
select from fetchq.queue_configure('rq_dead', '{"dead_letter": null}');
select fetchq.doc_push('rq_dead', 'stays'), fetchq.doc_push('rq_dead', 'stays-2');
select count(*) from fetchq.doc_pick('rq_dead', 0, 9, '1h');
update fetchq_data.rq_dead__docs set attempts = 9;
select fetchq.doc_reject('rq_dead', 'stays', 'bad luck', '{}'), fetchq.doc_kill('rq_dead', 'stays-2');
select subject, status, attempts, last_error from fetchq_data.rq_dead__docs order by subject;
select test.look();
select * from fetchq.queue_redrive('rq_dead', 100, '{"error_like": "bad%"}');
select * from fetchq.queue_redrive('rq_dead');
select test.look();
select subject, status, attempts, last_error, lease is not null as keeps_lease from fetchq_data.rq_dead__docs order by subject;
rollback;
select test.error($$select fetchq.queue_redrive('rq_nope')$$);
select test.error($$select fetchq.queue_redrive('rq_dead', -1)$$);
select test.error($$select fetchq.queue_redrive('rq_dead', 1, '{"nope": 1}')$$);

-- Reviving one document.
begin;
select from fetchq.queue_configure('rq_dead', '{"dead_letter": null}');
select fetchq.doc_push('rq_dead', s) from unnest('{dead,done,active}'::text[]) s;
select count(*) from fetchq.doc_pick('rq_dead', 0, 9, '1h');
update fetchq_data.rq_dead__docs set attempts = 9 where subject = 'dead';
select fetchq.doc_reject('rq_dead', 'dead', 'why', '{}'), fetchq.doc_complete('rq_dead', 'done');
select test.look();
select * from fetchq.doc_revive('rq_dead', 'dead');
select * from fetchq.doc_revive('rq_dead', 'done', '2970-02-03');
select test.look();
select subject, status, attempts, iterations, last_error, next_iteration <= now() as due from fetchq_data.rq_dead__docs order by subject;
select test.pick();
savepoint s;
select fetchq.doc_revive('rq_dead', 'dead');
rollback to s;
select fetchq.doc_revive('rq_dead', 'missing');
rollback;
select test.error($$select fetchq.doc_revive('rq_nope', 'a')$$);

-- Queues whose tables have further columns can exchange dead letters and moved documents.
begin;
alter table fetchq_data.rq_letters__docs add column extra int;
alter table fetchq_data.rq_dead__docs add column extra int;
select fetchq.doc_push('rq_dead', 'x-' || i) from generate_series(1, 3) i;
update fetchq_data.rq_dead__docs set max_attempts = 1;
select test.pick();
select fetchq.doc_reject('rq_dead', 'x-1', 'why', '{}'), fetchq.doc_kill('rq_dead', 'x-2');
update fetchq_data.rq_dead__docs set next_iteration = now() - interval '1 minute';
select * from fetchq.mnt_run('rq_dead', 9);
select subject, last_error, seq > 0 as is_numbered from fetchq_data.rq_letters__docs where subject ~ '^x-' order by seq;
select fetchq.docs_move('rq_letters', 'rq_third', '{"subject": "x-1"}'), fetchq.queue_redrive('rq_dead', 9, '{"subject_like": "x-%"}');
select subject from fetchq_data.rq_dead__docs order by seq;
select test.look();
rollback;
-- A document with an invalid origin stays, and the others are redriven.
begin;
select fetchq.doc_push('rq_letters', 'o-' || i) from generate_series(1, 6) i;
update fetchq_data.rq_letters__docs d set origin = case when o ~ '^{' then jsonb_build_object('queue_created_at', :'created') || o::jsonb else o::jsonb end
from unnest(array['{"queue": "rq_dead"}', '{"queue": "rq_dead", "subject": null}', '{"queue": "rq_dead", "subject": "' || repeat('x', 256) || '"}', '[]',
    '{"queue": 7, "subject": []}', '{"queue": "rq_dead", "subject": "back", "iterations": "many"}']) with ordinality as u (o, i)
where d.subject = 'o-' || i;
select fetchq.queue_redrive('rq_letters', 100, '{"subject_like": "o-%"}');
select fetchq.queue_redrive('rq_dead', 100, '{"subject_like": "o-%"}');
select subject, iterations from fetchq_data.rq_dead__docs;
select test.look();
rollback;

-- A dropped queue is removed as a target. A target that is missing nevertheless is an error.
drop view test.letters;
select was_dropped from fetchq.queue_drop('rq_letters');
select dead_letter from fetchq.queues where name = 'rq_dead';
update fetchq.queues set dead_letter = 'rq_gone' where name = 'rq_dead';
select fetchq.doc_push('rq_dead', 'g');
update fetchq_data.rq_dead__docs set max_attempts = 1;
select test.pick();
select test.error($$select fetchq.doc_reject('rq_dead', 'g', 'why', '{}')$$);
select test.error($$select fetchq.doc_kill('rq_dead', 'g')$$);
-- Maintenance reports the missing target, and does all other work.
select fetchq.doc_push('rq_dead', 'orphan'), fetchq.doc_push('rq_dead', 'later', 0, 0, now() + interval '1 day', '{}');
update fetchq_data.rq_dead__docs set max_attempts = 5 where subject = 'orphan';
select test.pick();
update fetchq_data.rq_dead__docs set next_iteration = now() - interval '1 minute';
select * from fetchq.mnt_run('rq_dead', 9);
select subject, status, last_error from fetchq_data.rq_dead__docs order by subject;
select test.exact('rq_dead');
update fetchq.jobs set next_iteration = case when queue = 'rq_dead' and task = 'mnt' then now() - interval '1 hour' else now() + interval '1 day' end;
select success, processed from fetchq.mnt_job_run(100);
select subject, status, last_error from fetchq_data.rq_dead__docs order by subject;
select test.exact('rq_dead');
update fetchq.queues set dead_letter = 'rq_third' where name = 'rq_dead';
select * from fetchq.mnt_run('rq_dead', 9);
select subject, status, last_error from fetchq_data.rq_dead__docs order by subject;
select subject from fetchq_data.rq_third__docs;
select test.exact('rq_dead'), test.exact('rq_third');

drop view test.docs;
drop function test.look(), test.pick();
select was_dropped from fetchq.queue_drop('rq_dead');
select was_dropped from fetchq.queue_drop('rq_third');
