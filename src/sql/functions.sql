-- The functions of fetchq: names, arguments and result columns of the contract.
-- The bodies are in src/api/. Rules:
--  * functions that are not hot run with a search_path of their own; the statements
--    behind the hot ones name schemas and operators in full instead, because setting
--    the path costs a noticeable part of a pick;
--  * none is STRICT: a NULL that makes no sense is an error that names the argument;
--  * all run with the rights of the caller, and none in parallel workers.


-- About the installation

create function fetchq.info(out version text, out extension_version text, out library_version text, out is_preloaded boolean, out has_worker boolean, out has_shared_memory boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'info_wrapper';
comment on function fetchq.info() is 'The version that fetchq 4 clients compare, what is installed, and what is active';

create function fetchq.init(out was_initialized boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'init_wrapper';
comment on function fetchq.init() is 'For old clients: true, nothing is left to do once the extension exists';

create function fetchq.upgrade__310__320(out success boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'upgrade_nothing_wrapper';
comment on function fetchq.upgrade__310__320() is 'For old clients: does nothing';

create function fetchq.upgrade__320__330(out success boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'upgrade_nothing_wrapper';
comment on function fetchq.upgrade__320__330() is 'For old clients: does nothing';

create function fetchq.upgrade__330__400(out success boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'upgrade_nothing_wrapper';
comment on function fetchq.upgrade__330__400() is 'For old clients: does nothing';

create function fetchq.destroy_with_terrible_consequences(out was_destroyed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'destroy_wrapper';
comment on function fetchq.destroy_with_terrible_consequences() is 'Drops the extension with every queue; only for superusers and the owner';


-- Queues

create function fetchq.queue_create(queue text, out was_created boolean, out queue_id int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_create_wrapper';
comment on function fetchq.queue_create(text) is 'Creates a queue; one that exists is left as it is';

create function fetchq.queue_drop(queue text, out was_dropped boolean, out queue_id int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_wrapper';
comment on function fetchq.queue_drop(text) is 'Drops a queue with its documents, logs, jobs and metrics';

create function fetchq.queue_get_id(queue text, out queue_id bigint)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_get_id_wrapper';
comment on function fetchq.queue_get_id(text) is 'The id of a queue';

create function fetchq.queue_create_indexes(queue text, out was_created boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_create_indexes_wrapper';
comment on function fetchq.queue_create_indexes(text) is 'Creates the indexes of a queue that are missing, and the trigger of the ready floors';

create function fetchq.queue_create_indexes(queue text, version int, attempts int, out was_created boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_create_indexes_for_wrapper';
comment on function fetchq.queue_create_indexes(text, int, int) is 'The same: the indexes serve every version and any number of attempts';

create function fetchq.queue_drop_indexes(queue text, out was_dropped boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_indexes_wrapper';
comment on function fetchq.queue_drop_indexes(text) is 'Drops the indexes of a queue but the primary key';

create function fetchq.queue_drop_version(queue text, version int, out was_dropped boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_version_wrapper';
comment on function fetchq.queue_drop_version(text, int) is 'Tells whether a version may go: false for the current one';

create function fetchq.queue_set_max_attempts(queue text, max_attempts int, out affected_rows int, out was_reindexed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_max_attempts_wrapper';
comment on function fetchq.queue_set_max_attempts(text, int) is 'Sets after how many attempts a document is killed';

create function fetchq.queue_set_current_version(queue text, version int, out affected_rows int, out was_reindexed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_current_version_wrapper';
comment on function fetchq.queue_set_current_version(text, int) is 'Sets the version that the queue''s documents have now';

create function fetchq.queue_set_logs_retention(queue text, retention text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_logs_retention_wrapper';
comment on function fetchq.queue_set_logs_retention(text, text) is 'Sets how long log lines are kept, as an interval';

create function fetchq.queue_set_metrics_retention(queue text, retention text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_metrics_retention_wrapper';
comment on function fetchq.queue_set_metrics_retention(text, text) is 'Sets which snapshots of metrics are kept, as a JSON policy';

create function fetchq.queue_drop_logs(queue text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_logs_wrapper';
comment on function fetchq.queue_drop_logs(text) is 'Removes log lines that are older than the queue''s retention';

create function fetchq.queue_drop_logs(queue text, older_than text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_logs_older_wrapper';
comment on function fetchq.queue_drop_logs(text, text) is 'Removes log lines that are older than an interval';

create function fetchq.queue_drop_logs(queue text, before timestamptz, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_logs_before_wrapper';
comment on function fetchq.queue_drop_logs(text, timestamptz) is 'Removes log lines from before a moment';

create function fetchq.queue_drop_metrics(queue text, out removed_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_metrics_wrapper';
comment on function fetchq.queue_drop_metrics(text) is 'Removes snapshots by the queue''s retention policy';

create function fetchq.queue_drop_metrics(queue text, policy jsonb, out removed_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_metrics_by_wrapper';
comment on function fetchq.queue_drop_metrics(text, jsonb) is 'Removes snapshots by a policy: the newest of each metric and unit of time stays';

create function fetchq.queue_enable_notify(queue text, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_enable_notify_wrapper';
comment on function fetchq.queue_enable_notify(text) is 'Announces the states that documents enter on the channels fetchq__<queue>__{pln,pnd,act,cpl,kll}';

create function fetchq.queue_disable_notify(queue text, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_disable_notify_wrapper';
comment on function fetchq.queue_disable_notify(text) is 'Stops announcing the states of documents';

create function fetchq.queue_status()
returns table (id int, name varchar, is_active boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_status_all_wrapper';
comment on function fetchq.queue_status() is 'All queues';

create function fetchq.queue_status(queue text)
returns table (id int, name varchar, is_active boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_status_wrapper';
comment on function fetchq.queue_status(text) is 'One queue';

create function fetchq.queue_top(queue text, version int, max_docs int, skip int)
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_top_wrapper';
comment on function fetchq.queue_top(text, int, int, int) is 'A page of the documents of one version, in the order of picking, without leasing them';

create function fetchq.queue_truncate(queue text, empty boolean default false, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_truncate_wrapper';
comment on function fetchq.queue_truncate(text, boolean) is 'Removes all documents of a queue; with empty also its logs and snapshots, and its jobs start anew';

create function fetchq.queue_truncate_all(empty boolean default false, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_truncate_all_wrapper';
comment on function fetchq.queue_truncate_all(boolean) is 'The same for every queue';


-- Adding documents. Hot: these set no search_path, their statements name everything in full.

create function fetchq.doc_push(queue text, subject text, payload jsonb default '{}', next_iteration timestamptz default pg_catalog.now(), out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_wrapper';
comment on function fetchq.doc_push(text, text, jsonb, timestamptz) is 'Plans a document with a unique subject; 0 when the subject exists';

create function fetchq.doc_push(queue text, subject text, version int, priority int, next_iteration timestamptz, payload jsonb, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_full_wrapper';
comment on function fetchq.doc_push(text, text, int, int, timestamptz, jsonb) is 'Plans a document with a unique subject; 0 when the subject exists';

create function fetchq.doc_push(queue text, version int, next_iteration timestamptz, documents text, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_list_wrapper';
comment on function fetchq.doc_push(text, int, timestamptz, text) is 'Plans a list of documents, written as (''subject'', priority, ''json'', {DATA}), ...; says how many were new';

create function fetchq.doc_push(queue text, subject text, payload text, next_iteration text, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_untyped_wrapper';
comment on function fetchq.doc_push(text, text, text, text) is 'The four-argument forms, for arguments without a type: a document, or a list when the last one starts with a parenthesis';

create function fetchq.doc_append(queue text, payload jsonb, version int default 0, priority int default 0, out subject varchar)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_wrapper';
comment on function fetchq.doc_append(text, jsonb, int, int) is 'Adds a document to be processed now, first in, first out; gives the subject made for it';

create function fetchq.doc_upsert(queue text, subject text, version int, priority int, next_iteration timestamptz, payload jsonb, out queued_docs int, out updated_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_upsert_wrapper';
comment on function fetchq.doc_upsert(text, text, int, int, timestamptz, jsonb) is 'Plans a document, or changes priority, payload and time of the one that exists unless it is active';


-- Leasing documents. Hot.

create function fetchq.doc_pick(queue text, max_docs int default 1, duration text default '5m')
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_wrapper';
comment on function fetchq.doc_pick(text, int, text) is 'Leases due documents of version 0, by priority and time';

create function fetchq.doc_pick(queue text, duration text)
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_text_wrapper';
comment on function fetchq.doc_pick(text, text) is 'Leases one due document of version 0 for a duration';

create function fetchq.doc_pick(queue text, duration interval)
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_interval_wrapper';
comment on function fetchq.doc_pick(text, interval) is 'Leases one due document of version 0 for a duration';

create function fetchq.doc_pick(queue text, version int, max_docs int, duration text)
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_full_text_wrapper';
comment on function fetchq.doc_pick(text, int, int, text) is 'Leases due documents of a version, by priority and time';

create function fetchq.doc_pick(queue text, version int, max_docs int, duration interval)
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_full_interval_wrapper';
comment on function fetchq.doc_pick(text, int, int, interval) is 'Leases due documents of a version, by priority and time';


-- Settling leased documents. Hot. A payload of NULL leaves the payload as it is.

create function fetchq.doc_complete(queue text, subject text, payload jsonb default null, lease bigint default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_complete_wrapper';
comment on function fetchq.doc_complete(text, text, jsonb, bigint) is 'Settles an active document as done; with a lease only while that holds';

create function fetchq.doc_kill(queue text, subject text, payload jsonb default null, lease bigint default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_kill_wrapper';
comment on function fetchq.doc_kill(text, text, jsonb, bigint) is 'Settles an active document as never to run again; with a lease only while that holds';

create function fetchq.doc_drop(queue text, subject text, lease bigint default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_drop_wrapper';
comment on function fetchq.doc_drop(text, text, bigint) is 'Settles an active document by removing it; with a lease only while that holds';

create function fetchq.doc_reschedule(queue text, subject text, next_iteration timestamptz, payload jsonb default null, lease bigint default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reschedule_wrapper';
comment on function fetchq.doc_reschedule(text, text, timestamptz, jsonb, bigint) is 'Plans the next iteration of an active document; with a lease only while that holds';

create function fetchq.doc_reject(queue text, subject text, message text, details jsonb, ref_id text default null, lease bigint default null, delay interval default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reject_wrapper';
comment on function fetchq.doc_reject(text, text, text, jsonb, text, bigint, interval) is 'Gives an active document back after a failure: retried after the delay, or by the policy of the queue, or when its lease would have ended; killed after its last attempt';

create function fetchq.doc_push_many(queue text, docs jsonb, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_many_wrapper';
comment on function fetchq.doc_push_many(text, jsonb) is 'Plans a JSON array of documents {"subject", "payload", "version", "priority", "next_iteration"}; says how many were new';

create function fetchq.doc_push_many(queue text, subjects text[], payloads jsonb[], version int default 0, priority int default 0, next_iteration timestamptz default pg_catalog.now(), out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_many_arrays_wrapper';
comment on function fetchq.doc_push_many(text, text[], jsonb[], int, int, timestamptz) is 'Plans documents that share version, priority and time; says how many were new';

create function fetchq.doc_append_many(queue text, payloads jsonb[], version int default 0, priority int default 0, out subject text)
returns setof text
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_many_wrapper';
comment on function fetchq.doc_append_many(text, jsonb[], int, int) is 'Adds documents to be picked in their order; gives the generated subjects';

create function fetchq.doc_upsert_many(queue text, docs jsonb, out subject text, out action text)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_upsert_many_wrapper';
comment on function fetchq.doc_upsert_many(text, jsonb) is 'Plans a JSON array of documents, or changes those that exist: created, updated or skipped';

create function fetchq.doc_complete_many(queue text, subjects text[], payloads jsonb[] default null, lease bigint default null, out subject text, out settled boolean)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_complete_many_wrapper';
comment on function fetchq.doc_complete_many(text, text[], jsonb[], bigint) is 'Settles active documents as done; with a lease all of them, or it is an error';

create function fetchq.doc_reschedule_many(queue text, subjects text[], next_iteration timestamptz, payloads jsonb[] default null, lease bigint default null, out subject text, out settled boolean)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reschedule_many_wrapper';
comment on function fetchq.doc_reschedule_many(text, text[], timestamptz, jsonb[], bigint) is 'Plans the next iteration of active documents; with a lease all of them, or it is an error';

create function fetchq.doc_drop_many(queue text, subjects text[], lease bigint default null, out subject text, out settled boolean)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_drop_many_wrapper';
comment on function fetchq.doc_drop_many(text, text[], bigint) is 'Settles active documents by removing them; with a lease all of them, or it is an error';

create function fetchq.log_error(queue text, subject text, message text, details jsonb, ref_id text default null, out queued_logs boolean)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'log_error_wrapper';
comment on function fetchq.log_error(text, text, text, jsonb, text) is 'Adds a line to the log of a queue';


-- Metrics

create function fetchq.metric_get(queue text)
returns table (metric varchar, current_value bigint, last_update timestamptz)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_all_of_wrapper';
comment on function fetchq.metric_get(text) is 'All metrics of a queue, exact at this moment';

create function fetchq.metric_get(queue text, metric text, out current_value int, out last_update timestamptz, out does_exists boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_wrapper';
comment on function fetchq.metric_get(text, text) is 'One metric of a queue, exact at this moment';

create function fetchq.metric_get_common(queue text, out cnt int, out pnd int, out pln int, out act int, out cpl int, out kll int, out ent int, out drp int, out pkd int, out prc int, out res int, out rej int, out orp int, out err int)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_common_wrapper';
comment on function fetchq.metric_get_common(text) is 'The common metrics of a queue';

create function fetchq.metric_get_all()
returns table (queue varchar, cnt int, pnd int, pln int, act int, cpl int, kll int, ent int, drp int, pkd int, prc int, res int, rej int, orp int, err int)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_all_wrapper';
comment on function fetchq.metric_get_all() is 'The common metrics of every queue';

create function fetchq.metric_get_total(metric text, out current_value int, out does_exists boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_total_wrapper';
comment on function fetchq.metric_get_total(text) is 'The sum of a metric over all queues';

create function fetchq.metric_compute(queue text, out cnt int, out pln int, out pnd int, out act int, out kll int, out cpl int)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_compute_wrapper';
comment on function fetchq.metric_compute(text) is 'The documents of a queue, counted for real: reads the whole table';

create function fetchq.metric_compute_all()
returns table (queue varchar, cnt int, pln int, pnd int, act int, cpl int, kll int)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_compute_all_wrapper';
comment on function fetchq.metric_compute_all() is 'The documents of every queue, counted for real';

create function fetchq.metric_reset(queue text, out cnt int, out pln int, out pnd int, out act int, out cpl int, out kll int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_reset_wrapper';
comment on function fetchq.metric_reset(text) is 'Forgets the metrics of a queue and stores its documents as counted';

create function fetchq.metric_reset_all()
returns table (queue varchar, cnt int, pln int, pnd int, act int, cpl int, kll int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_reset_all_wrapper';
comment on function fetchq.metric_reset_all() is 'The same for every queue';

create function fetchq.metric_set(queue text, metric text, value int, out current_value int, out was_created boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_set_wrapper';
comment on function fetchq.metric_set(text, text, int) is 'Sets a metric at once';

create function fetchq.metric_increment(queue text, metric text, value int, out current_value int, out was_created boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_increment_wrapper';
comment on function fetchq.metric_increment(text, text, int) is 'Adds to a metric at once';

create function fetchq.metric_log_increment(queue text, metric text, value int, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_increment_wrapper';
comment on function fetchq.metric_log_increment(text, text, int) is 'Adds to a metric at the next pack';

create function fetchq.metric_log_decrement(queue text, metric text, value int, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_decrement_wrapper';
comment on function fetchq.metric_log_decrement(text, text, int) is 'Subtracts from a metric at the next pack';

create function fetchq.metric_log_set(queue text, metric text, value int, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_set_wrapper';
comment on function fetchq.metric_log_set(text, text, int) is 'Sets a metric at the next pack';

create function fetchq.metric_log_pack(out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_pack_wrapper';
comment on function fetchq.metric_log_pack() is 'Packs counter events and pending writes; what others hold waits for the next time';

create function fetchq.metric_snap(queue text, out success boolean, out inserts int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_snap_wrapper';
comment on function fetchq.metric_snap(text) is 'Takes a snapshot of all metrics of a queue';

create function fetchq.metric_snap(queue text, metric text, out success boolean, out inserts int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_snap_one_wrapper';
comment on function fetchq.metric_snap(text, text) is 'Takes a snapshot of one metric';

create function fetchq.metric_snap(queue text, metrics jsonb, out success boolean, out inserts int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_snap_some_wrapper';
comment on function fetchq.metric_snap(text, jsonb) is 'Takes a snapshot of the metrics in a JSON array';


-- Maintenance

create function fetchq.mnt_make_pending(queue text, max_docs int, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_make_pending_wrapper';
comment on function fetchq.mnt_make_pending(text, int) is 'Makes planned documents pending whose time has come';

create function fetchq.mnt_reschedule_orphans(queue text, max_docs int, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_reschedule_orphans_wrapper';
comment on function fetchq.mnt_reschedule_orphans(text, int) is 'Returns documents whose lease ran out';

create function fetchq.mnt_mark_dead(queue text, max_docs int, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_mark_dead_wrapper';
comment on function fetchq.mnt_mark_dead(text, int) is 'Kills documents whose lease ran out at their last attempt';

create function fetchq.mnt_run(queue text, max_docs int, out activated_count int, out rescheduled_count int, out killed_count int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_run_wrapper';
comment on function fetchq.mnt_run(text, int) is 'All three, up to max_docs of each';

create function fetchq.mnt_run_all(max_docs int)
returns table (queue varchar, activated_count int, rescheduled_count int, killed_count int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_run_all_wrapper';
comment on function fetchq.mnt_run_all(int) is 'The same for every queue';

create function fetchq.mnt_job_pick(duration text, max_jobs int)
returns table (id int, task varchar, queue varchar, attempts int, iterations bigint, next_iteration timestamptz, last_iteration timestamptz, settings jsonb, payload jsonb)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_pick_wrapper';
comment on function fetchq.mnt_job_pick(text, int) is 'Claims maintenance jobs that are due; one that keeps failing backs off';

create function fetchq.mnt_job_reschedule(id int, delay text, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_reschedule_wrapper';
comment on function fetchq.mnt_job_reschedule(int, text) is 'Plans the next run of a maintenance job';

create function fetchq.mnt_job_run(max_jobs int default 1, out success boolean, out processed int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_run_wrapper';
comment on function fetchq.mnt_job_run(int) is 'Runs maintenance jobs that are due';

create function fetchq.mnt_job_run(duration text, max_jobs int, out success boolean, out processed int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_run_for_wrapper';
comment on function fetchq.mnt_job_run(text, int) is 'Runs maintenance jobs that are due, claiming each for a duration';

create function fetchq.mnt(duration text default '5m', out processed int, out packed int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_wrapper';
comment on function fetchq.mnt(text) is 'Runs every maintenance job of every queue now, then packs the counters';


-- Schedules

create function fetchq.schedule_create(name text, queue text, schedule text, payload jsonb default '{}', timezone text default 'UTC', version int default 0, priority int default 0, catch_up text default 'once', catch_up_limit int default 100, jitter interval default '0', starts_at timestamptz default null, ends_at timestamptz default null, replace boolean default false, out was_created boolean, out next_tick timestamptz)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_create_wrapper';
comment on function fetchq.schedule_create(text, text, text, jsonb, text, int, int, text, int, interval, timestamptz, timestamptz, boolean) is 'Pushes a document at each tick of a cron expression or an interval; with replace changes a schedule that exists';

create function fetchq.schedule_drop(name text, out was_dropped boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_drop_wrapper';
comment on function fetchq.schedule_drop(text) is 'Drops a schedule; false when there is none. Its documents stay';

create function fetchq.schedule_pause(name text, out was_paused boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_pause_wrapper';
comment on function fetchq.schedule_pause(text) is 'Stops a schedule; false when it was paused already';

create function fetchq.schedule_resume(name text, out was_resumed boolean, out next_tick timestamptz)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_resume_wrapper';
comment on function fetchq.schedule_resume(text) is 'Goes on with the next tick; the ticks of the pause are left out. One that was not paused and failed is tried again at once';

create function fetchq.schedule_list()
returns table (name text, queue varchar, schedule text, timezone text, state text, next_tick timestamptz, last_tick timestamptz, ticks bigint, catch_up text, catch_up_limit int, jitter interval, version int, priority int, payload jsonb, starts_at timestamptz, ends_at timestamptz, created_at timestamptz, attempts int, last_error text)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres_verbose
as 'MODULE_PATHNAME', 'schedule_list_wrapper';
comment on function fetchq.schedule_list() is 'All schedules: active, paused, failing or ended';

create function fetchq.schedule_preview(schedule text, timezone text default 'UTC', from_time timestamptz default pg_catalog.now(), n int default 10)
returns table (tick timestamptz, local_time text)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_preview_wrapper';
comment on function fetchq.schedule_preview(text, text, timestamptz, int) is 'The next n ticks after a moment, from which an interval is counted';

create function fetchq.schedule_run(max_schedules int default 100, out processed int, out queued_docs int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_run_wrapper';
comment on function fetchq.schedule_run(int) is 'Pushes what is due now; the worker and mnt_job_run() do so too';

create function fetchq.schedule_run(max_schedules int, as_of timestamptz, out processed int, out queued_docs int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_run_as_of_wrapper';
comment on function fetchq.schedule_run(int, timestamptz) is 'For tests: the same as if it were another time';


-- Tools

create function fetchq.trace(subject text, direction text default 'ASC')
returns table (step int, created_at timestamptz, queue varchar, type varchar, info varchar, details jsonb)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'trace_wrapper';
comment on function fetchq.trace(text, text) is 'Documents and errors of a subject in every queue';

create function fetchq.utils_ts_retain(table_name text, field text, unit text, from_time timestamptz, to_time timestamptz, out removed_rows bigint)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'utils_ts_retain_wrapper';
comment on function fetchq.utils_ts_retain(text, text, text, timestamptz, timestamptz) is 'Keeps the newest row of a table for every unit of time between two moments';


-- Triggers

create function fetchq.trigger_docs_notify() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_notify_wrapper';
comment on function fetchq.trigger_docs_notify() is 'Trigger made by queue_enable_notify: announces the state a document entered';

create function fetchq.trigger_docs_ready() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_ready_wrapper';
comment on function fetchq.trigger_docs_ready() is 'Trigger of every queue: tells the ready floors of a row that was written';


-- The ready floors

create function fetchq.ready_stats(out slots int, out slots_used int, out raises bigint, out raises_discarded bigint, out polls_answered bigint, out full_scans bigint, out floor_misses bigint)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'ready_stats_wrapper';
comment on function fetchq.ready_stats() is 'The shared memory of the ready floors since the server started; slots is 0 without it';

create function fetchq.ready_floors(queue text, out index text, out version int, out level int, out next_iteration timestamptz, out attempts int, out seq bigint, out is_empty boolean)
returns setof record
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'ready_floors_wrapper';
comment on function fetchq.ready_floors(text) is 'The ready floors of a queue: where picks and maintenance begin to look';

-- The worker

create function fetchq.worker_wake(out was_woken boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'worker_wake_wrapper';
comment on function fetchq.worker_wake() is 'Has the launcher look for databases that need a worker, when this transaction commits; false when there is no launcher';

create function fetchq.maintenance_progress(out pid int, out service text, out queue text, out since timestamptz, out done bigint)
returns setof record
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'maintenance_progress_wrapper';
comment on function fetchq.maintenance_progress() is 'What maintenance is doing in this database now: which process, which service, in which queue, since when, and how many rows by now';

create view fetchq.progress as select * from fetchq.maintenance_progress();
comment on view fetchq.progress is 'What maintenance is doing in this database now';

create function fetchq.status(out component text, out state text, out detail text, out hint text)
returns setof record
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'fetchq_status_wrapper';
comment on function fetchq.status() is 'The state of fetchq in this database: what runs, what is late, what is in the way, and what to do';

create function fetchq.doc_pick_wait(queue text, version int default 0, max_docs int default 1, duration interval default '5m', timeout interval default '10s')
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_wait_wrapper';
comment on function fetchq.doc_pick_wait(text, int, int, interval, interval) is 'Leases due documents as soon as there are any; waits up to fetchq.max_wait, and holds a snapshot meanwhile';

create procedure fetchq.queue_wait(queue text, timeout interval, inout ready boolean default null, version int default 0)
language c
as 'MODULE_PATHNAME', 'queue_wait_wrapper';
comment on procedure fetchq.queue_wait(text, interval, boolean, int) is 'Waits until a document can be picked: true, or false when the time is over';

create procedure fetchq.queue_wait(queues text[], timeout interval, inout ready text default null, version int default 0)
language c
as 'MODULE_PATHNAME', 'queue_wait_any_wrapper';
comment on procedure fetchq.queue_wait(text[], interval, text, int) is 'Waits until a document of one of the queues can be picked: the queue, or NULL when the time is over';


-- Bulk administration

create function fetchq.docs_retry(queue text, filter jsonb default '{}', max_docs int default 1000, dry_run boolean default false, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_retry_wrapper';
comment on function fetchq.docs_retry(text, jsonb, int, boolean) is 'Makes documents due now that wait for their time or were killed, the oldest first; completed ones where the filter names that status';

create function fetchq.docs_kill(queue text, filter jsonb default '{}', max_docs int default 1000, dry_run boolean default false, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_kill_wrapper';
comment on function fetchq.docs_kill(text, jsonb, int, boolean) is 'Kills planned and pending documents, the oldest first; active ones where the filter names that status';

create function fetchq.docs_drop(queue text, filter jsonb default '{}', max_docs int default 1000, dry_run boolean default false, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_drop_wrapper';
comment on function fetchq.docs_drop(text, jsonb, int, boolean) is 'Removes documents, the oldest first; active ones where the filter names that status';

create function fetchq.docs_move(queue text, target text, filter jsonb default '{}', max_docs int default 1000, dry_run boolean default false, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_move_wrapper';
comment on function fetchq.docs_move(text, text, jsonb, int, boolean) is 'Moves documents that are not active to another queue, the oldest first; those whose subject exists there stay';

create function fetchq.docs_set_priority(queue text, priority int, filter jsonb default '{}', max_docs int default 1000, dry_run boolean default false, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_set_priority_wrapper';
comment on function fetchq.docs_set_priority(text, int, jsonb, int, boolean) is 'Gives planned and pending documents another priority, the oldest first';


-- Dead letters and history

create function fetchq.queue_set_dead_letter(queue text, target text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_dead_letter_wrapper';
comment on function fetchq.queue_set_dead_letter(text, text) is 'Sets the queue that takes documents that are killed by failing; NULL: they stay';

create function fetchq.doc_revive(queue text, subject text, next_iteration timestamptz default pg_catalog.now(), out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_revive_wrapper';
comment on function fetchq.doc_revive(text, text, timestamptz) is 'Plans a killed or completed document anew, with all its attempts';

create function fetchq.queue_redrive(queue text, max_docs int default 100, filter jsonb default '{}', out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'queue_redrive_wrapper';
comment on function fetchq.queue_redrive(text, int, jsonb) is 'Brings back what failed, the oldest first: killed documents, dead letters of the queue, and those of others that it took; repeat until 0';

create function fetchq.queue_set_history(queue text, completed interval default null, killed interval default null, dropped interval default null, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_history_wrapper';
comment on function fetchq.queue_set_history(text, interval, interval, interval) is 'Says what becomes of settled documents: NULL leaves completed and killed ones in the table, 0 removes them at once, an interval keeps them that long in the history of the queue';

create function fetchq.queue_trim_history(queue text, max_docs int default 10000, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_trim_history_wrapper';
comment on function fetchq.queue_trim_history(text, int) is 'Removes what the history has held for longer than it is kept; maintenance does so too';

create function fetchq.queue_history(queue text default null)
returns table (queue varchar, id bigint, settled_at timestamptz, outcome text, subject varchar, version int, priority int, attempts int, iterations bigint, created_at timestamptz, payload jsonb, last_error text, ordering_key text, origin jsonb, worker text)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_history_wrapper';
comment on function fetchq.queue_history(text) is 'The history of a queue, or of all that the caller may read';

create view fetchq.history as select * from fetchq.queue_history();
comment on view fetchq.history is 'Settled documents of all queues that keep a history';

-- Putting documents whose subject may exist; a worker in SQL (docs/pushing.md, docs/sql-worker.md)

-- Hot.
create function fetchq.doc_put(queue text, subject text, payload jsonb default '{}', next_iteration timestamptz default pg_catalog.now(), version int default 0, priority int default 0, mode text default 'ignore', ordering_key text default null, max_attempts int default null, out action text)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_put_wrapper';
comment on function fetchq.doc_put(text, text, jsonb, timestamptz, int, int, text, text, int) is 'Plans a document; when its subject exists, the mode says what happens: ignore, replace, merge, earliest, debounce, reset';

create function fetchq.doc_put_many(queue text, docs jsonb, mode text default 'ignore', out subject text, out action text)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_put_many_wrapper';
comment on function fetchq.doc_put_many(text, jsonb, text) is 'Puts a JSON array of documents, each with a mode of its own if it names one: created, updated, ignored or revived';

create procedure fetchq.work(queue text, handler regproc, max_docs int default null, idle_timeout interval default null, duration interval default '5m', version int default 0, inout processed int default null, inout failed int default null)
language plpgsql as $work$
-- No search_path is set, because a procedure that commits can not have one: everything
-- is named in full. What resolves names behind the scenes is left out too: IN, NULLIF,
-- IS DISTINCT FROM.
declare
    called pg_catalog.text;
    takes_document boolean;
    gives pg_catalog.text;
    worker pg_catalog.text;
    started constant pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    idle_since pg_catalog.timestamptz := started;
    wait interval;
    is_ready boolean;
    doc pg_catalog.record;
    answer pg_catalog.jsonb;
    at pg_catalog.timestamptz;
    action pg_catalog.text;
    settled int;
    state pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    context pg_catalog.text;
    hint pg_catalog.text;
    is_stuck boolean;
begin
    processed := 0;
    failed := 0;
    if queue is null or handler is null or duration is null or version is null then
        raise exception 'queue, handler, duration and version of fetchq.work() must not be null'
            using errcode = 'null_value_not_allowed', hint = 'call fetchq.work(''my_queue'', ''my_handler'')';
    end if;
    select pg_catalog.format('select %I.%I(%s)', n.nspname, p.proname,
            case when p.pronargs operator(pg_catalog.=) 2 then '$1, $2' else '$2' end),
        p.pronargs operator(pg_catalog.=) 2,
        p.prorettype::pg_catalog.regtype::pg_catalog.text
    into called, takes_document, gives
    from pg_catalog.pg_proc p
    join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) p.pronamespace
    where p.oid operator(pg_catalog.=) handler::pg_catalog.oid
        and p.prokind operator(pg_catalog.=) 'f' and not p.proretset
        -- (jsonb), (text, jsonb); void, jsonb, timestamptz
        and p.proargtypes::pg_catalog.text operator(pg_catalog.=) any ('{3802,25 3802}'::pg_catalog.text[])
        and p.prorettype operator(pg_catalog.=) any ('{2278,3802,1184}'::pg_catalog.oid[]);
    if called is null then
        raise exception '%() can not handle documents', handler
            using errcode = 'undefined_function',
                hint = 'A handler is a function of (payload jsonb) or of (queue text, document jsonb) that returns void, timestamptz or jsonb.';
    end if;
    if not pg_catalog.has_function_privilege(handler::pg_catalog.oid, 'execute') then
        raise exception 'permission denied for function %', handler using errcode = 'insufficient_privilege';
    end if;

    -- Fails in a transaction block, and where there is no such queue.
    call fetchq.queue_wait(queue, '0'::interval, is_ready, version);
    -- Each transaction is READ COMMITTED, whatever the default of the session: while the
    -- handler runs the lease is extended by others, and a kept snapshot could not settle
    -- the document any more. First of all, before anything has taken a snapshot.
    commit;
    set transaction isolation level read committed;
    loop
        exit when (processed operator(pg_catalog.+) failed) operator(pg_catalog.>=) max_docs;
        worker := pg_catalog.current_setting('fetchq.worker', true);
        if worker is null or worker operator(pg_catalog.=) '' then
            worker := pg_catalog.format('%s/%s', pg_catalog.current_setting('application_name'), pg_catalog.pg_backend_pid());
        end if;
        perform from fetchq.stops s
        where s.name operator(pg_catalog.=) pg_catalog."left"(worker, 200) and s.since operator(pg_catalog.>=) started;
        exit when found;

        -- For as long as this session lives.
        perform pg_catalog.set_config('fetchq.session_leases', 'keep', true);
        select * into doc from fetchq.doc_pick(queue, version, 1, duration);
        if not found then
            commit;
            set transaction isolation level read committed;
            wait := '1 second';
            if idle_timeout is not null then
                wait := least(wait, (idle_since operator(pg_catalog.+) idle_timeout) operator(pg_catalog.-) pg_catalog.clock_timestamp());
                exit when wait operator(pg_catalog.<=) '0'::interval;
            end if;
            -- Without a snapshot or a lock. Now and then it looks whether it is to stop.
            call fetchq.queue_wait(queue, wait, is_ready, version);
            commit;
            set transaction isolation level read committed;
            continue;
        end if;
        -- Others see who holds it; what the handler does is undone without that.
        commit;
        set transaction isolation level read committed;

        state := null;
        answer := null;
        at := null;
        begin
            if gives operator(pg_catalog.=) 'jsonb' then
                execute called into answer using queue, case when takes_document then pg_catalog.to_jsonb(doc) else doc.payload end;
            elsif gives operator(pg_catalog.=) 'void' then
                execute called using queue, case when takes_document then pg_catalog.to_jsonb(doc) else doc.payload end;
            else
                execute called into at using queue, case when takes_document then pg_catalog.to_jsonb(doc) else doc.payload end;
            end if;
            action := case when at is null then 'complete' else 'reschedule' end;
            if answer is not null then
                if pg_catalog.jsonb_typeof(answer) operator(pg_catalog.<>) 'object' then
                    raise exception 'the answer of the handler is no JSON object: %', answer
                        using errcode = 'invalid_parameter_value';
                end if;
                action := coalesce(answer operator(pg_catalog.->>) 'action', 'complete');
                at := (answer operator(pg_catalog.->>) 'at')::pg_catalog.timestamptz;
            end if;
            if action operator(pg_catalog.=) 'complete' then
                settled := fetchq.doc_complete(queue, doc.subject, answer operator(pg_catalog.->) 'payload', lease => doc.lease);
            elsif action operator(pg_catalog.=) 'reschedule' then
                settled := fetchq.doc_reschedule(queue, doc.subject, at, answer operator(pg_catalog.->) 'payload', lease => doc.lease);
            elsif action operator(pg_catalog.=) 'snooze' then
                settled := fetchq.doc_snooze(queue, doc.subject, at, lease => doc.lease);
            elsif action operator(pg_catalog.=) 'kill' then
                settled := fetchq.doc_kill(queue, doc.subject, answer operator(pg_catalog.->) 'payload', lease => doc.lease);
            elsif action operator(pg_catalog.=) 'drop' then
                settled := fetchq.doc_drop(queue, doc.subject, lease => doc.lease);
            else
                raise exception 'the handler wants the unknown action %', action
                    using errcode = 'invalid_parameter_value', hint = 'The actions are complete, reschedule, snooze, kill and drop.';
            end if;
            if settled operator(pg_catalog.<>) 1 then
                raise exception 'document % of queue % was not settled', doc.subject, queue
                    using errcode = 'object_not_in_prerequisite_state';
            end if;
            -- What is checked at the end of a transaction fails here, where it can be caught.
            set constraints all immediate;
            processed := processed operator(pg_catalog.+) 1;
        exception
            when query_canceled or assert_failure or others then
                get stacked diagnostics state = returned_sqlstate, message = message_text,
                    detail = pg_exception_detail, context = pg_exception_context;
        end;

        if state operator(pg_catalog.<>) '57014' then
            failed := failed operator(pg_catalog.+) 1;
            begin
                perform fetchq.doc_reject(queue, doc.subject, pg_catalog."left"(message, 255),
                    pg_catalog.jsonb_build_object('sqlstate', state, 'message', message, 'detail', detail, 'context', context),
                    lease => doc.lease);
                set constraints all immediate;
                state := null;
            exception
                when query_canceled or assert_failure or others then
                    get stacked diagnostics state = returned_sqlstate, message = message_text, hint = pg_exception_hint;
            end;
        end if;

        if state is not null then
            -- A cancel, or it could not be rejected. The session goes on, and with it the
            -- lease would: hand the document back, unless it is not ours any more, because
            -- it was cancelled or taken back. Whether it is, only asking for it tells.
            rollback;
            set transaction isolation level read committed;
            is_stuck := false;
            begin
                perform fetchq.doc_snooze(queue, doc.subject,
                    pg_catalog.now() operator(pg_catalog.+) case when state operator(pg_catalog.=) '57014' then '0' else '1 minute' end::interval,
                    lease => doc.lease);
                set constraints all immediate;
                if state operator(pg_catalog.<>) '57014' then
                    raise warning 'document "%" of queue "%" could not be rejected: %', doc.subject, queue, message
                        using errcode = state, detail = 'It was handed back, and is due again in a minute.',
                            hint = case when hint operator(pg_catalog.=) '' then 'Mend what keeps it from being rejected; until then it comes again and again.' else hint end;
                end if;
            exception
                when object_not_in_prerequisite_state then
                    null;
                when query_canceled or assert_failure or others then
                    is_stuck := state operator(pg_catalog.<>) '57014';
                    raise warning 'document "%" of queue "%" could not be handed back: %', doc.subject, queue, sqlerrm
                        using errcode = sqlstate, hint = 'It comes back when this session ends.';
            end;
            commit;
            set transaction isolation level read committed;
            -- As if it had not been caught.
            if state operator(pg_catalog.=) '57014' then
                raise exception '%', message using errcode = 'query_canceled';
            elsif is_stuck then
                raise exception '%', message
                    using errcode = state, hint = 'The document could not be handed back, and comes back when this session ends.';
            end if;
        end if;
        commit;
        set transaction isolation level read committed;
        idle_since := pg_catalog.clock_timestamp();
    end loop;
end $work$;
comment on procedure fetchq.work(text, regproc, int, interval, interval, int, int, int) is 'A worker: picks documents of a queue, calls the handler, completes or rejects them, until it is told to stop';

-- Flow control: pausing, limits, ordering keys, picking from several queues.

create function fetchq.queue_pause(queue text, out was_paused boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_pause_wrapper';
comment on function fetchq.queue_pause(text) is 'Pauses a queue: nothing of it can be picked; false when it is paused already';

create function fetchq.queue_resume(queue text, out was_resumed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_resume_wrapper';
comment on function fetchq.queue_resume(text) is 'Resumes a queue that is paused; false when it is not';

create function fetchq.queue_set_max_active(queue text, max_active int, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_max_active_wrapper';
comment on function fetchq.queue_set_max_active(text, int) is 'Sets how many documents of a queue can be active at a time; NULL: any number';

create function fetchq.queue_set_rate(queue text, picks int, per interval default '1s', out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_rate_wrapper';
comment on function fetchq.queue_set_rate(text, int, interval) is 'Sets how many documents of a queue can be picked within any interval of a length; NULL: any number';

create function fetchq.queue_set_ordered(queue text, is_ordered boolean default true, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_ordered_wrapper';
comment on function fetchq.queue_set_ordered(text, boolean) is 'Switches the order of a queue on or off: documents of one ordering key run one at a time, in turn';

create function fetchq.trigger_docs_cap() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_cap_wrapper';
comment on function fetchq.trigger_docs_cap() is 'Trigger: keeps the places of a queue with max_active';

create function fetchq.trigger_docs_order() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_order_wrapper';
comment on function fetchq.trigger_docs_order() is 'Trigger: keeps the lines of an ordered queue';

create function fetchq.doc_pick_any(queues text[], max_docs int default 1, duration interval default '5m', version int default 0, weights int[] default null)
returns table (queue text, subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz, lease bigint)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_any_wrapper';
comment on function fetchq.doc_pick_any(text[], int, interval, int, int[]) is 'Leases due documents of several queues in turn, by the weights of the queues';

select fetchq.worker_wake();


-- Leases: extending, handing back, cancelling; and who holds what.

create function fetchq.doc_extend(queue text, subject text, duration interval, lease bigint default null, out next_iteration timestamptz, out stop boolean)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_extend_wrapper';
comment on function fetchq.doc_extend(text, text, interval, bigint) is 'Has a lease last for a duration from now; tells when it ends, and whether the worker should stop: with no end the document was cancelled';

create function fetchq.doc_snooze(queue text, subject text, next_iteration timestamptz default pg_catalog.now(), lease bigint default null, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_snooze_wrapper';
comment on function fetchq.doc_snooze(text, text, timestamptz, bigint) is 'Hands an active document back until a time, as if it had not been picked: the attempt does not count';

create function fetchq.doc_cancel(queue text, subject text, out was_cancelled boolean, out status text)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_cancel_wrapper';
comment on function fetchq.doc_cancel(text, text) is 'Kills a document that is planned, pending or active; who holds it is told by doc_extend(), and its lease is lost. Gives the status that it had';

create function fetchq.doc_pop(queue text, version int default 0, max_docs int default 1)
returns table (subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint, created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz, lock_upgrade timestamptz)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pop_wrapper';
comment on function fetchq.doc_pop(text, int, int) is 'Removes due documents, by priority and time, and returns them; a rollback puts them back';

create function fetchq.worker_release(name text, out released_docs int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'worker_release_wrapper';
comment on function fetchq.worker_release(text) is 'Hands back all documents that a worker holds, as if they had not been picked';

create function fetchq.worker_stop(name text, out was_asked boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'worker_stop_wrapper';
comment on function fetchq.worker_stop(text) is 'Asks a worker to stop: doc_extend() tells it, and fetchq.work() ends after the document it is at';

create function fetchq.queue_set_retry(queue text, base interval, factor double precision default 2, max_delay interval default null, jitter double precision default 0, max_attempts int default null, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_retry_wrapper';
comment on function fetchq.queue_set_retry(text, interval, double precision, interval, double precision, int) is 'Sets when a rejected document is tried again: base * factor ^ (attempts - 1), up to max_delay, jitter times that earlier or later; base NULL: when its lease would have ended';

create function fetchq.lease_list(out queue varchar, out subject varchar, out version int, out attempts int, out lease bigint, out worker text, out pid int, out since timestamptz, out until timestamptz, out binding text, out holder bigint)
returns setof record
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'lease_list_wrapper';
comment on function fetchq.lease_list() is 'The documents that are leased, of the queues that the caller may read';

create view fetchq.leases as select * from fetchq.lease_list();
comment on view fetchq.leases is 'The documents that are leased: by whom, since and until when';

create view fetchq.workers as
with held as materialized (select * from fetchq.lease_list()),
sessions as (
    select h.name, h.id, h.pid, h.since, a.pid is not null as is_alive
    from fetchq.holders h
    left join pg_catalog.pg_stat_get_activity(null) a
        on a.pid = h.pid and coalesce(a.backend_start = h.backend_start, true)
)
select
    s.name,
    count(distinct s.pid) filter (where s.is_alive)::int as sessions,
    count(l.subject)::int as documents,
    coalesce(array_agg(distinct l.queue::text order by l.queue::text) filter (where l.queue is not null), '{}') as queues,
    min(s.since) as since,
    min(l.since) as oldest_lease,
    min(l.until) as next_expiry,
    coalesce(bool_or(t.since > s.since), false) as is_asked_to_stop
from sessions s
left join held l on l.holder = s.id
left join fetchq.stops t on t.name = s.name
group by s.name
having bool_or(s.is_alive) or count(l.subject) > 0;
comment on view fetchq.workers is 'The workers that have picked documents: their sessions, and what they hold';
