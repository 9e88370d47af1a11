-- docs_extend: one heartbeat for all documents of a process.
select was_created from fetchq.queue_create('rq_de', '{"lease": "7 minutes"}');
select was_created from fetchq.queue_create('rq_de2', '{"lease": "50 minutes"}');
select fetchq.doc_push('rq_de', s) from unnest('{a,b,c,d,e,f}'::text[]) s;
select fetchq.doc_push('rq_de2', s) from unnest('{a,z}'::text[]) s;
create table held (queue text, subject text, lease bigint, primary key (queue, subject));
insert into held select 'rq_de', subject, lease from fetchq.doc_lease('rq_de', 4, worker => 'rq_de_worker');
insert into held select 'rq_de', subject, lease from fetchq.doc_lease('rq_de', 2);
insert into held select 'rq_de2', subject, lease from fetchq.doc_lease('rq_de2', 2);
-- What a worker sends: its documents, with the numbers of their leases.
create function heartbeat(queues text, variadic subjects text[]) returns jsonb language sql as $$
    select jsonb_agg(jsonb_build_object('queue', queue, 'subject', subject, 'lease', lease) order by s.n)
    from unnest(subjects) with ordinality s (subject, n) join held using (subject) where queue like queues $$;
create view leased as
    select 'rq_de' as queue, subject, status, (next_iteration - clock_timestamp()) > interval '30 minutes' as is_long, progress from fetchq_data.rq_de__docs
    union all
    select 'rq_de2', subject, status, (next_iteration - clock_timestamp()) > interval '30 minutes', progress from fetchq_data.rq_de2__docs
    order by queue, subject;
prepare extend as select queue, subject, outcome, lease_ends - clock_timestamp() > interval '50 minutes' as is_long, stop
    from fetchq.docs_extend(queue => $1, extensions => $2, duration => $3);

-- Documents of several leases, in the order of the list, with their progress. The others stay as they are.
begin;
execute extend('rq_de', heartbeat('rq_de', 'e', 'b') || jsonb_build_array(heartbeat('rq_de', 'a') -> 0 || '{"progress": {"pages": 3}}'), '1 hour');
select * from leased;
-- Progress that is not named, or null, stays.
execute extend('rq_de', jsonb_build_array(heartbeat('rq_de', 'a') -> 0 || '{"progress": null}'), '1 hour');
select subject, progress from leased where progress is not null;
rollback;
-- Without the direct path the statement does it.
begin;
set local fetchq.direct = off;
execute extend('rq_de', heartbeat('rq_de', 'e', 'b') || jsonb_build_array(heartbeat('rq_de', 'a') -> 0 || '{"progress": {"pages": 3}}'), '1 hour');
select * from leased where is_long or progress is not null;
rollback;
-- Documents of several queues, each named by its queue; without a duration, that of each queue.
begin;
execute extend(null, heartbeat('%', 'a', 'z'), '1 hour');
select queue, subject, lease_ends - clock_timestamp() > interval '30 minutes' as is_long from fetchq.docs_extend('rq_de2', heartbeat('%', 'a', 'z'));
rollback;
-- Each outcome: extended, cancelled, lost to another lease, settled, and missing. A lease number may be text.
begin;
select fetchq.doc_cancel('rq_de', 'b'), fetchq.doc_complete('rq_de', 'c', lease => (select lease from held where subject = 'c'));
execute extend('rq_de', heartbeat('rq_de', 'a', 'b', 'c') || '[{"subject": "d", "lease": 7}, {"subject": "nobody", "lease": "7"}]', '1 hour');
select * from leased where queue = 'rq_de';
set local fetchq.direct = off;
execute extend('rq_de', heartbeat('rq_de', 'a', 'b', 'c') || '[{"subject": "d", "lease": 7}, {"subject": "nobody", "lease": "7"}]', '1 hour');
rollback;
-- A worker was asked to stop; the other one was not.
begin;
select fetchq.worker_stop('rq_de_worker');
execute extend('rq_de', heartbeat('rq_de', 'a', 'e', 'd', 'f'), '1 hour');
rollback;
-- A trigger keeps a document as it is: an error, because the lease holds.
begin;
create function keep() returns trigger language plpgsql as 'begin return null; end';
create trigger keep before update on fetchq_data.rq_de__docs for each row when (old.subject = 'b') execute function keep();
select test.error($$select fetchq.docs_extend('rq_de', heartbeat('rq_de', 'a', 'b'))$$);
rollback;
-- An empty list, and one document: as doc_extend, which is a list of one.
execute extend('rq_de', '[]', '1 hour');
execute extend(null, '[]', null);

-- What is wrong is an error with its position, and nothing was extended.
select test.error('select fetchq.docs_extend(' || c || ')') from unnest(array[
    $$'rq_nope', '[{"subject": "a", "lease": 7}]'$$, $$'rq de', '[]'$$, $$'rq_de', null$$, $$'rq_de', '{}'$$, $$'rq_de', '[1]'$$,
    $$'rq_de', heartbeat('rq_de', 'a') || '[{"lease": 7}]'$$, $$'rq_de', heartbeat('rq_de', 'a') || '[{"subject": "b"}]'$$,
    $$'rq_de', heartbeat('rq_de', 'a') || '[{"subject": "b", "lease": null}]'$$, $$'rq_de', '[{"subject": "b", "lease": "x"}]'$$,
    $$'rq_de', '[{"subject": "b", "lease": 1.5}]'$$, $$'rq_de', '[{"subject": 1, "lease": 7}]'$$,
    $$'rq_de', '[{"subject": "a", "lease": 7, "duration": "1 h"}]'$$,
    $$null, '[{"subject": "a", "lease": 7}]'$$, $$null, '[{"queue": "rq_nope", "subject": "a", "lease": 7}]'$$,
    $$null, '[{"queue": "no queue", "subject": "a", "lease": 7}]'$$, $$null, '[{"queue": 1, "subject": "a", "lease": 7}]'$$,
    $$'rq_de', heartbeat('rq_de', 'a', 'b') || heartbeat('rq_de', 'a')$$,
    $$'rq_de', heartbeat('rq_de', 'a'), '-1 second'$$, $$'rq_de', heartbeat('rq_de', 'a'), '300000 years'$$,
    $$'rq_de', jsonb_build_array(jsonb_build_object('subject', repeat('s', 256), 'lease', 7))$$]) c;
select count(*) from leased where queue = 'rq_de' and is_long;
select test.exact('rq_de'), test.exact('rq_de2');
deallocate extend;
drop view leased;
drop function heartbeat(text, text[]);
drop table held;
select (fetchq.queue_drop('rq_de')).was_dropped, (fetchq.queue_drop('rq_de2')).was_dropped;
