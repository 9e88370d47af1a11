-- The settings of a queue.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select was_created from fetchq.queue_create('rq_set');

-- Attempts.
select * from fetchq.queue_set_max_attempts('rq_set', 2);
select max_attempts from fetchq.queues where name = 'rq_set';
select test.error($$select fetchq.queue_set_max_attempts('rq_set', 0)$$);
select test.error($$select fetchq.queue_set_max_attempts('rq_set', -1)$$);
select max_attempts from fetchq.queues where name = 'rq_set';
select * from fetchq.queue_set_max_attempts('rq_nope', 2);

-- The new number applies at once, also to a document that is active.
select fetchq.doc_push('rq_set', 's1');
select subject from fetchq.doc_pick('rq_set');
select * from fetchq.queue_set_max_attempts('rq_set', 1);
select fetchq.doc_reject('rq_set', 's1', 'no', '{}');
select subject, status, attempts from fetchq_data.rq_set__docs;

-- The current version.
select * from fetchq.queue_set_current_version('rq_set', 3);
select current_version from fetchq.queues where name = 'rq_set';
select * from fetchq.queue_set_current_version('rq_nope', 3);
select fetchq.queue_drop_version('rq_set', 3);
select fetchq.queue_drop_version('rq_set', 0);
select fetchq.queue_drop_version('rq_nope', 0);

-- Retention of logs: any interval that is not negative.
select fetchq.queue_set_logs_retention('rq_set', '2 days');
select logs_retention from fetchq.queues where name = 'rq_set';
select test.error($$select fetchq.queue_set_logs_retention('rq_set', 'soon')$$);
select test.error($$select fetchq.queue_set_logs_retention('rq_set', '-1h')$$);
select logs_retention from fetchq.queues where name = 'rq_set';
select fetchq.queue_set_logs_retention('rq_nope', '1h');

-- Retention of metrics: a policy that cannot be applied is rejected.
select fetchq.queue_set_metrics_retention('rq_set', '[{"retain": "minute", "from": "1h", "to": "0s"}]');
select metrics_retention from fetchq.queues where name = 'rq_set';
select test.error($$select fetchq.queue_set_metrics_retention('rq_set', 'x')$$);
select test.error($$select fetchq.queue_set_metrics_retention('rq_set', '{}')$$);
select test.error($$select fetchq.queue_set_metrics_retention('rq_set', '[{"retain": "minute"}]')$$);
select test.error($$select fetchq.queue_set_metrics_retention('rq_set', '[{"retain": "eon", "from": "1h", "to": "0s"}]')$$);
select test.error($$select fetchq.queue_set_metrics_retention('rq_set', '[{"retain": "hour", "from": "long", "to": "0s"}]')$$);
select test.error($$select fetchq.queue_set_metrics_retention('rq_set', '[{"retain": "hour", "from": "1h", "to": "-1h"}]')$$);
select metrics_retention from fetchq.queues where name = 'rq_set';
select fetchq.queue_set_metrics_retention('rq_set', '[]');
select fetchq.queue_set_metrics_retention('rq_nope', '[]');

-- Indexes: all except the primary key are dropped and created; both calls can be repeated.
create view test.indexes as
select x.relname from pg_index i join pg_class x on x.oid = i.indexrelid
where i.indrelid = 'fetchq_data.rq_set__docs'::regclass;
select * from test.indexes order by relname collate "C";
select fetchq.queue_drop_indexes('rq_set');
select fetchq.queue_drop_indexes('rq_set');
select * from test.indexes order by relname collate "C";
-- Without the indexes the queue works, but slowly.
select fetchq.doc_push('rq_set', 's2');
select subject from fetchq.doc_pick('rq_set');
select fetchq.doc_drop('rq_set', 's2');
select fetchq.queue_create_indexes('rq_set');
select * from test.indexes order by relname collate "C";
select fetchq.queue_create_indexes('rq_set', 3, 5);
select * from test.indexes order by relname collate "C";
drop view test.indexes;
select fetchq.queue_create_indexes('rq_nope');
select fetchq.queue_create_indexes('rq_nope', 0, 5);
select fetchq.queue_drop_indexes('rq_nope');

-- Notifications: both calls can be repeated; no lock is needed where nothing changes.
create view test.triggers as
select t.tgname from pg_trigger t
where t.tgrelid = 'fetchq_data.rq_set__docs'::regclass and not t.tgisinternal;
select * from test.triggers order by tgname collate "C";
select fetchq.queue_disable_notify('rq_set');
select fetchq.queue_enable_notify('rq_set');
begin;
select fetchq.queue_enable_notify('rq_set');
select l.mode from pg_locks l
where l.pid = pg_backend_pid() and l.relation = 'fetchq_data.rq_set__docs'::regclass and l.mode <> 'AccessShareLock';
commit;
select * from test.triggers order by tgname collate "C";
select fetchq.doc_push('rq_set', 's3');
select subject from fetchq.doc_pick('rq_set');
select fetchq.doc_complete('rq_set', 's3');
select fetchq.queue_disable_notify('rq_set');
select fetchq.queue_disable_notify('rq_set');
select * from test.triggers order by tgname collate "C";
drop view test.triggers;
select test.error($$select fetchq.queue_enable_notify('rq_nope')$$);
select test.error($$select fetchq.queue_disable_notify('rq_nope')$$);

-- Clients set is_active with a plain UPDATE.
update fetchq.queues set is_active = false where name = 'rq_set';
select name, is_active from fetchq.queue_status('rq_set');
select was_dropped from fetchq.queue_drop('rq_set');
