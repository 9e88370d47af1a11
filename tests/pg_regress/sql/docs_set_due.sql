-- Changing the time and the priority of documents that are not leased.
select was_created from fetchq.queue_create('rq_due');
create view test.docs as
select subject, status, priority, attempts, case when next_iteration in ('2100-01-01', 'infinity') then next_iteration::text when next_iteration <= now() then 'due' else 'later' end as due,
    lock_upgrade, last_error from fetchq_data.rq_due__docs order by seq;
create function test.fill() returns void language plpgsql as $$
begin
    perform fetchq.queue_truncate('rq_due');
    perform fetchq.doc_put('rq_due', s, priority => 9) from unnest('{active,done,dead,retry}'::text[]) s;
    perform fetchq.doc_pick('rq_due', 0, 4, '1h');
    perform fetchq.doc_complete('rq_due', 'done'), fetchq.doc_kill('rq_due', 'dead'), fetchq.doc_reject('rq_due', 'retry', 'no luck', '{}');
    perform fetchq.doc_put('rq_due', 'now-1'), fetchq.doc_put('rq_due', 'now-2', priority => 3);
    perform fetchq.doc_put('rq_due', 'later-1', delay => '1 hour'), fetchq.doc_put('rq_due', 'later-2', due_at => 'infinity', priority => 5);
    perform test.delta('rq_due');
end $$;
begin;
select test.fill();
select * from test.docs;

-- One document.
select fetchq.doc_set_due('rq_due', 'later-1', now()), fetchq.doc_set_due('rq_due', 'later-1', now()) as again;
select fetchq.doc_set_due('rq_due', 'now-1', delay => '1 hour'), fetchq.doc_set_due('rq_due', 'now-2', '2100-01-01'), fetchq.doc_set_due('rq_due', 'later-2', '2100-01-01');
select fetchq.doc_set_due('rq_due', 'retry', '2100-01-01');
select fetchq.doc_set_priority('rq_due', 'now-1', 7), fetchq.doc_set_priority('rq_due', 'now-1', 7) as again, fetchq.doc_set_priority('rq_due', 'later-2', -1);
select * from test.docs;
select test.delta('rq_due'), test.exact('rq_due');
select subject from fetchq.doc_pick('rq_due', 0, 9, '1h');
-- Many documents, and a dry run that changes nothing.
select test.fill();
select fetchq.docs_set_due('rq_due', '2100-01-01', filter => '{"all": true}', dry_run => true) as all, fetchq.docs_set_due('rq_due', delay => '1 hour', filter => '{"subject_like": "now%"}', dry_run => true) as now,
    fetchq.docs_set_due('rq_due', '2100-01-01', filter => '{"status": ["active", "killed", "completed"]}', dry_run => true) as others;
select test.delta('rq_due');
select fetchq.docs_set_due('rq_due', '2100-01-01', filter => '{"all": true}', max_docs => 2);
select fetchq.docs_set_due('rq_due', '2100-01-01', filter => '{"all": true}'), fetchq.docs_set_due('rq_due', '2100-01-01', filter => '{"all": true}') as again;
select * from test.docs;
select test.delta('rq_due'), test.exact('rq_due');
select fetchq.docs_set_due('rq_due', now(), filter => '{"status": "planned", "min_priority": 3}');
select fetchq.docs_set_due('rq_due', delay => '0', filter => '{"subject": "later-1"}');
select fetchq.docs_set_due('rq_due', 'infinity', filter => '{"subject": "now-1"}');
select * from test.docs;
select test.delta('rq_due'), test.exact('rq_due');
rollback;

-- What is wrong is named. A leased document stays as it is.
select test.fill();
select test.error(c) from unnest(array[
    $$select fetchq.doc_set_due('rq_due', 'active', now())$$, $$select fetchq.doc_set_due('rq_due', 'done', now())$$, $$select fetchq.doc_set_due('rq_due', 'dead', now())$$,
    $$select fetchq.doc_set_due('rq_due', 'nobody', now())$$, $$select fetchq.doc_set_priority('rq_due', 'active', 1)$$, $$select fetchq.doc_set_priority('rq_due', 'nobody', 1)$$,
    $$select fetchq.doc_set_due('rq_due', 'now-1')$$, $$select fetchq.doc_set_due('rq_due', 'now-1', now(), '1 hour')$$, $$select fetchq.doc_set_due('rq_due', 'now-1', delay => '-1 s')$$,
    $$select fetchq.doc_set_due('rq_due', 'now-1', delay => '178000000 years')$$, $$select fetchq.doc_set_due('rq_nope', 'now-1', now())$$, $$select fetchq.doc_set_due('rq_due', null, now())$$,
    $$select fetchq.doc_set_due('rq_due', repeat('x', 300), now())$$, $$select fetchq.doc_set_priority('rq_due', 'now-1', null)$$, $$select fetchq.doc_set_priority('rq_nope', 'now-1', 1)$$,
    $$select fetchq.docs_set_due('rq_due', now())$$, $$select fetchq.docs_set_due('rq_due', filter => '{"all": true}')$$, $$select fetchq.docs_set_due('rq_due', now(), '1 hour', '{"all": true}')$$,
    $$select fetchq.docs_set_due('rq_due', delay => '-1 s', filter => '{"all": true}')$$, $$select fetchq.docs_set_due('rq_nope', now(), filter => '{"all": true}')$$,
    $$select fetchq.docs_set_due('rq_due', now(), filter => '{"stauts": "planned"}')$$, $$select fetchq.docs_set_due('rq_due', now(), filter => '{"all": true}', max_docs => -1)$$]) c;
select count(*) from test.docs where due = 'due' and status = 1;

-- In the order of a key, a document that is put off makes way for the next one.
select fetchq.queue_truncate('rq_due');
select from fetchq.queue_configure('rq_due', '{"ordered": true}');
select fetchq.doc_put('rq_due', s, ordering_key => 'k', due_at => '2020-01-01') from unnest('{a,b,c}'::text[]) s;
select subject, status, lock_upgrade from test.docs;
select fetchq.doc_set_due('rq_due', 'a', '2100-01-01'), fetchq.doc_set_due('rq_due', 'c', '2019-01-01'), fetchq.doc_set_priority('rq_due', 'c', 3);
select subject, status, priority, lock_upgrade from test.docs;
select subject from fetchq.doc_pick('rq_due', 9);
select fetchq.docs_set_due('rq_due', '2020-01-01', filter => '{"all": true}');
select subject, status, lock_upgrade from test.docs;
select test.exact('rq_due');
select from fetchq.queue_configure('rq_due', '{"ordered": false}');

-- A worker may do that; a reader and a producer may not.
create role rq_due_worker;
create role rq_due_producer;
create role rq_due_reader;
select fetchq.queue_grant('rq_due', 'rq_due_worker', 'worker'), fetchq.queue_grant('rq_due', 'rq_due_producer', 'producer'), fetchq.queue_grant('rq_due', 'rq_due_reader', 'reader');
grant usage on schema test to public;
grant execute on function test.error(text) to public;
set role rq_due_worker;
select fetchq.doc_set_due('rq_due', 'a', '2100-01-01'), fetchq.doc_set_priority('rq_due', 'a', 8), fetchq.docs_set_due('rq_due', now(), filter => '{"subject": "a"}');
set role rq_due_producer;
select test.error(c) from unnest(array[$$select fetchq.doc_set_due('rq_due', 'a', now())$$, $$select fetchq.doc_set_priority('rq_due', 'a', 1)$$, $$select fetchq.docs_set_due('rq_due', now(), filter => '{"all": true}')$$]) c;
set role rq_due_reader;
select test.error(c) from unnest(array[$$select fetchq.doc_set_due('rq_due', 'a', now())$$, $$select fetchq.doc_set_priority('rq_due', 'a', 1)$$, $$select fetchq.docs_set_due('rq_due', now(), filter => '{"all": true}')$$]) c;
reset role;
drop view test.docs;
drop function test.fill();
select was_dropped from fetchq.queue_drop('rq_due');
drop owned by rq_due_worker, rq_due_producer, rq_due_reader;
drop role rq_due_worker, rq_due_producer, rq_due_reader;
