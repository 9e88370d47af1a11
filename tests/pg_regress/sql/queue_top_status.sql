-- Reading the documents of a queue and the status of queues.
select was_created from fetchq.queue_create('rq_top');
select was_created from fetchq.queue_create('rq_top2');
select name, is_active from fetchq.queue_status();
update fetchq.queues set is_active = false where name = 'rq_top2';
select name, is_active from fetchq.queue_status() order by name collate "C";
select name, is_active, id = fetchq.queue_get_id('rq_top2') as its_id from fetchq.queue_status('rq_top2');
select * from fetchq.queue_status('rq_nope');

-- A page of one version, in the order of picking, with every status.
select fetchq.doc_push('rq_top', 'planned', 0, 0, '2970-01-01', '{"n": 1}');
select fetchq.doc_push('rq_top', 'late', 0, 0, '2020-01-02', '{}');
select fetchq.doc_push('rq_top', 'early', 0, 0, '2020-01-01', '{}');
select fetchq.doc_push('rq_top', 'first', 0, 9, '2020-01-03', '{}');
select fetchq.doc_push('rq_top', 'other', 1, 9, '2020-01-01', '{}');
select subject, payload, version, priority, attempts, iterations, next_iteration, last_iteration, lock_upgrade
from fetchq.queue_top('rq_top', 0, 10, 0);
select subject from fetchq.queue_top('rq_top', 0, 2, 1);
select subject from fetchq.queue_top('rq_top', 0, 2, 10);
select subject from fetchq.queue_top('rq_top', 0, 0, 0);
select subject from fetchq.queue_top('rq_top', 1, 10, 0);
select subject from fetchq.queue_top('rq_top', 2, 10, 0);
-- Reading leases nothing.
select status, count(*) from fetchq_data.rq_top__docs group by status order by status;
select subject from fetchq.doc_pick('rq_top', 0, 1, '5m');
select subject from fetchq.queue_top('rq_top', 0, 10, 0) order by subject collate "C";
select test.error($$select fetchq.queue_top('rq_top', 0, -1, 0)$$);
select test.error($$select fetchq.queue_top('rq_top', 0, 1, -1)$$);
select test.error($$select fetchq.queue_top('rq_nope', 0, 1, 1)$$);
select was_dropped from fetchq.queue_drop('rq_top');
select was_dropped from fetchq.queue_drop('rq_top2');
