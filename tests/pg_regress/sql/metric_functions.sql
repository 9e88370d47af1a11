-- The functions for metrics.
-- The values that fetchq 4 returned instead of an error.
set fetchq.strict = off;
select fetchq.metric_log_pack() >= 0 as starts_empty;
select was_created from fetchq.queue_create('rq_metric');
select was_created from fetchq.queue_create('rq_metric2');

-- Reading missing metrics.
select * from fetchq.metric_get('rq_metric');
select * from fetchq.metric_get('rq_metric', 'cnt');
select * from fetchq.metric_get_common('rq_metric');
select * from fetchq.metric_get_total('rq_total');

-- Set and increment, effective at once.
select * from fetchq.metric_set('rq_metric', 'mine', 5);
select * from fetchq.metric_set('rq_metric', 'mine', 7);
select * from fetchq.metric_increment('rq_metric', 'mine', 3);
select * from fetchq.metric_increment('rq_metric', 'mine', -20);
select * from fetchq.metric_increment('rq_metric', 'other', 2);
select * from fetchq.metric_increment('rq_metric', 'other', 0);
select * from fetchq.metric_set('rq_metric', 'it''s "mine"', 0);
select metric, current_value, last_update is not null as updated from fetchq.metric_get('rq_metric');
select current_value, last_update = now() as now, does_exists from fetchq.metric_get('rq_metric', 'mine');

-- A metric that fetchq counts can be set too, packed or not; counting continues from the value.
select fetchq.doc_push('rq_metric', 's1');
select fetchq.doc_push('rq_metric', 's2');
select * from fetchq.metric_set('rq_metric', 'cnt', 10);
select fetchq.doc_push('rq_metric', 's3');
select current_value from fetchq.metric_get('rq_metric', 'cnt');
select * from fetchq.metric_increment('rq_metric', 'cnt', 5);
select * from fetchq.metric_increment('rq_metric', 'pnd', 5);
select * from fetchq.metric_set('rq_metric', 'v0', 50);
select fetchq.metric_log_pack() > 0 as packed;
select metric, current_value from fetchq.metric_get('rq_metric');

-- Common, all, total.
select * from fetchq.metric_get_common('rq_metric');
select fetchq.doc_push('rq_metric2', 's1');
select * from fetchq.metric_get_all();
select * from fetchq.metric_get_total('ent');
select * from fetchq.metric_set('rq_metric', 'rq_total', 40);
select * from fetchq.metric_set('rq_metric2', 'rq_total', 2);
select * from fetchq.metric_get_total('rq_total');

-- metric_compute counts without storing; metric_reset stores the result and deletes the rest.
select * from fetchq.metric_compute('rq_metric');
select subject from fetchq.doc_pick('rq_metric', 0, 1, '1h');
select * from fetchq.metric_compute('rq_metric');
select * from fetchq.metric_compute_all();
select current_value from fetchq.metric_get('rq_metric', 'cnt');
select * from fetchq.metric_reset('rq_metric');
select metric, current_value from fetchq.metric_get('rq_metric');
select test.exact('rq_metric');
select fetchq.metric_log_pack() >= 0 as packed;
select test.exact('rq_metric');
select * from fetchq.metric_set('rq_metric2', 'cnt', 10);
select * from fetchq.metric_reset_all();
select test.exact('rq_metric2');
select current_value from fetchq.metric_get('rq_metric2', 'ent');

-- Logged writes: effective at the next pack; the result is the number of affected rows.
select fetchq.metric_log_pack() >= 0 as packed;
select * from fetchq.metric_log_increment('rq_metric', 'logged', 5);
select * from fetchq.metric_log_increment('rq_metric', 'logged', 5);
select * from fetchq.metric_log_decrement('rq_metric', 'logged', 3);
select * from fetchq.metric_log_increment('rq_metric', 'logged', 0);
select * from fetchq.metric_log_decrement('rq_metric', 'logged', 0);
select * from fetchq.metric_log_decrement('rq_metric', 'logged', -2147483648);
select * from fetchq.metric_log_increment('rq_metric', 'logged', -2147483648);
select current_value, does_exists from fetchq.metric_get('rq_metric', 'logged');
select * from fetchq.metric_log_pack();
select current_value, does_exists from fetchq.metric_get('rq_metric', 'logged');
select * from fetchq.metric_log_pack();
select current_value from fetchq.metric_get('rq_metric', 'logged');

-- A set applies from its position in the log: earlier writes are overwritten, later ones added.
select * from fetchq.metric_log_increment('rq_metric', 'logged', 100);
select * from fetchq.metric_log_set('rq_metric', 'logged', 50);
select * from fetchq.metric_log_increment('rq_metric', 'logged', 1);
select * from fetchq.metric_log_set('rq_metric', 'logged', 60);
select * from fetchq.metric_log_decrement('rq_metric', 'logged', 4);
select * from fetchq.metric_log_pack();
select current_value from fetchq.metric_get('rq_metric', 'logged');
select * from fetchq.metric_log_set('rq_metric', 'new', 8);
select * from fetchq.metric_log_pack();
select current_value from fetchq.metric_get('rq_metric', 'new');

-- Rows with a future time wait.
insert into fetchq.metrics_writes (created_at, queue, metric, increment) values ('2970-01-01', 'rq_metric', 'new', 1);
select * from fetchq.metric_log_pack();
select current_value from fetchq.metric_get('rq_metric', 'new');
delete from fetchq.metrics_writes;

-- A pack counts the events of documents and the logged writes.
select fetchq.doc_push('rq_metric', 'p1');
select fetchq.doc_push('rq_metric', 'p2');
select fetchq.metric_log_increment('rq_metric', 'new', 1);
select * from fetchq.metric_log_pack();
select * from fetchq.metric_log_pack();
select test.exact('rq_metric');

-- Snapshots.
select fetchq.queue_truncate('rq_metric', true);
select * from fetchq.metric_set('rq_metric', 'mine', 5);
select * from fetchq.metric_snap('rq_metric');
select * from fetchq.metric_snap('rq_metric', 'mine');
select * from fetchq.metric_snap('rq_metric', 'absent');
select * from fetchq.metric_snap('rq_metric', '["mine", "cnt", "absent"]'::jsonb);
select * from fetchq.metric_snap('rq_metric', '[]'::jsonb);
select metric, value, created_at <= now() as has_time from fetchq_data.rq_metric__metrics order by id;
select test.error($$select fetchq.metric_snap('rq_metric', '{"a": 1}'::jsonb)$$);
select test.error($$select fetchq.metric_snap('rq_metric', '[1]'::jsonb)$$);
select * from fetchq.metric_snap('rq_nope');
select * from fetchq.metric_snap('rq_nope', 'mine');
select * from fetchq.metric_snap('rq_nope', '["mine"]'::jsonb);

-- Values out of the range of int: bigint columns show them; int columns, as in fetchq 4, show the
-- largest int, with a warning, and the other columns stay right.
select * from fetchq.metric_set('rq_metric', 'ent', 2147483647);
select * from fetchq.metric_increment('rq_metric', 'ent', 2147483647);
select metric, current_value from fetchq.metric_get('rq_metric') where metric = 'ent';
select current_value, does_exists from fetchq.metric_get('rq_metric', 'ent');
select * from fetchq.metric_get_common('rq_metric');
select * from fetchq.metric_get_all();
select * from fetchq.metric_get_total('ent');
select * from fetchq.metric_set('rq_metric', 'low', -2147483648);
select * from fetchq.metric_increment('rq_metric', 'low', -1);

-- Names.
select * from fetchq.metric_set('rq_metric', repeat('m', 40), 1);
select test.error($$select fetchq.metric_set('rq_metric', repeat('m', 41), 1)$$);
select test.error($$select fetchq.metric_set('rq_metric', '', 1)$$);
select test.error($$select fetchq.metric_get('rq_metric', repeat('m', 41))$$);
select test.error($$select fetchq.metric_compute('rq_nope')$$);
select test.error($$select fetchq.metric_reset('rq_nope')$$);
select was_dropped from fetchq.queue_drop('rq_metric');
select was_dropped from fetchq.queue_drop('rq_metric2');
