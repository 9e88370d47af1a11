-- Creating a queue: once, with all its objects.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created, queue_id as made from fetchq.queue_create('rq_create') \gset
\echo :was_created
select id = :made as is_its_id, name, is_active, current_version, max_attempts, logs_retention, metrics_retention, config
from fetchq.queues where name = 'rq_create';
select task, queue, attempts, iterations, next_iteration <= now() as is_due, last_iteration, settings, payload
from fetchq.jobs where queue = 'rq_create' order by id;
select relname from pg_class
where relnamespace = 'fetchq_data'::regnamespace and relkind = 'r' and relname like 'rq\_create\_\_%'
order by relname collate "C";
select * from fetchq.metric_get('rq_create');

-- A second call changes nothing, and returns the id.
update fetchq.queues set max_attempts = 9 where name = 'rq_create';
select fetchq.doc_push('rq_create', 's1');
select was_created, queue_id = :made as same_id from fetchq.queue_create('rq_create');
select was_created, queue_id = :made as same_id from fetchq.queue_create('RQ_Create');
select max_attempts from fetchq.queues where name = 'rq_create';
select count(*) from fetchq_data.rq_create__docs;
select count(*) from fetchq.jobs where queue = 'rq_create';
select queue_id = :made as same_id, pg_typeof(queue_id) from fetchq.queue_get_id('rq_create') as queue_id;
select fetchq.queue_get_id('rq_nope');

-- A queue that was dropped and created again is a new one; plans of the old one are not used.
select was_dropped, queue_id = :made as same_id from fetchq.queue_drop('rq_create');
select was_created, queue_id > :made as new_id from fetchq.queue_create('rq_create');
select fetchq.doc_push('rq_create', 's1');
select subject from fetchq.doc_pick('rq_create', 0, 1, '5m');
select fetchq.doc_complete('rq_create', 's1');
select test.exact('rq_create');

-- The same three calls in one transaction that is rolled back: the old queue is unchanged.
begin;
select was_dropped from fetchq.queue_drop('rq_create');
select was_created from fetchq.queue_create('rq_create');
select fetchq.doc_push('rq_create', 's2');
select subject from fetchq.doc_pick('rq_create', 0, 1, '5m');
rollback;
select subject, status from fetchq_data.rq_create__docs;
select test.exact('rq_create');

-- A creation that is rolled back leaves nothing.
begin;
select was_created from fetchq.queue_create('rq_create2');
select fetchq.doc_push('rq_create2', 's1');
rollback;
select fetchq.doc_push('rq_create2', 's1');
select to_regclass('fetchq_data.rq_create2__docs');
select count(*) from fetchq.jobs where queue = 'rq_create2';
select was_dropped from fetchq.queue_drop('rq_create');

-- A table that exists although no queue is registered is an error, and is not reused.
create table fetchq_data.rq_create__logs (x int);
select test.error($$select fetchq.queue_create('rq_create')$$);
select count(*) from fetchq.queues where name = 'rq_create';
drop table fetchq_data.rq_create__logs;
select was_created from fetchq.queue_create('rq_create');
select was_dropped from fetchq.queue_drop('rq_create');
