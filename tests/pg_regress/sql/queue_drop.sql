-- Dropping a queue removes all its objects, and nothing else.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_drop');
select was_created from fetchq.queue_create('rq_drop_other');
select fetchq.doc_push('rq_drop', 's1');
select fetchq.doc_push('rq_drop_other', 's1');
select fetchq.log_error('rq_drop', 's1', 'message', '{}');
select * from fetchq.metric_set('rq_drop', 'mine', 3);
select fetchq.metric_log_increment('rq_drop', 'mine', 1);
select fetchq.metric_log_increment('rq_drop_other', 'mine', 1);
select fetchq.queue_enable_notify('rq_drop');
select fetchq.queue_get_id('rq_drop') as id \gset
select count(*) > 0 as has_events from fetchq.counter_log where queue_id = :id;
select was_dropped, queue_id = :id as its_id from fetchq.queue_drop('rq_drop');
select count(*) from fetchq.queues where name = 'rq_drop';
select count(*) from fetchq.jobs where queue = 'rq_drop';
select count(*) from fetchq.metrics where queue = 'rq_drop';
select count(*) from fetchq.metrics_writes where queue = 'rq_drop';
select count(*) from fetchq.counter_log where queue_id = :id;
select count(*) from pg_class where relnamespace = 'fetchq_data'::regnamespace and relname like 'rq\_drop\_\_%';
select * from fetchq.metric_get('rq_drop');
select count(*) from fetchq.jobs where queue = 'rq_drop_other';
select count(*) from fetchq.metrics_writes where queue = 'rq_drop_other';
select test.exact('rq_drop_other');

-- A missing queue.
select * from fetchq.queue_drop('rq_drop');

-- A queue of which a console has already dropped some tables.
select was_created from fetchq.queue_create('rq_drop');
drop table fetchq_data.rq_drop__docs, fetchq_data.rq_drop__metrics;
select was_dropped from fetchq.queue_drop('rq_drop');
select count(*) from pg_class where relnamespace = 'fetchq_data'::regnamespace and relname like 'rq\_drop\_\_%';

-- Names are folded here too.
select was_dropped from fetchq.queue_drop('RQ_drop_OTHER');

-- Dropped between pick and complete: the settling call returns 0, with a warning.
select was_created from fetchq.queue_create('rq_drop');
select fetchq.doc_push('rq_drop', 's1');
select subject from fetchq.doc_pick('rq_drop');
select was_dropped from fetchq.queue_drop('rq_drop');
select fetchq.doc_complete('rq_drop', 's1');
select was_created from fetchq.queue_create('rq_drop');
select fetchq.doc_complete('rq_drop', 's1');
select * from fetchq.metric_get('rq_drop');
select was_dropped from fetchq.queue_drop('rq_drop');
