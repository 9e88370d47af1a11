-- Privileges. PUBLIC has no rights on the schemas. A role that may use both can call every function
-- except those below, and the functions check its rights on the queue, which are the privileges on
-- the docs table. Nobody needs rights on the other tables of the schema fetchq, and nobody else may
-- create anything in the two schemas. docs/guides/security.md describes all this.
revoke all on schema fetchq, fetchq_data from public;

-- For the owner of the extension.
revoke all on function fetchq.background_worker_wake() from public;
revoke all on function fetchq.data_owner_set(text) from public;
revoke all on function fetchq.late_lease(bigint, text, bigint, timestamptz) from public;
revoke all on function fetchq.destroy_with_terrible_consequences() from public;
revoke all on function fetchq.schedule_run_at(int, timestamptz) from public;
revoke all on function fetchq.utils_ts_retain(text, text, text, timestamptz, timestamptz) from public;
revoke all on function fetchq.trigger_jobs_restore() from public;
revoke all on function fetchq.trigger_queue_changed() from public;

-- For roles that create queues, and for a role that packs the counters of all queues.
revoke all on function fetchq.queue_create(text, jsonb) from public;
revoke all on function fetchq.metric_log_pack() from public;

-- These views show only what concerns queues on which the caller has a right.
grant select on fetchq.leases, fetchq.workers, fetchq.history, fetchq.dead_letters, fetchq.progress,
    fetchq.metrics_live, fetchq.metric_samples to public;

-- When the extension is committed, the launcher starts a background worker for this database.
select fetchq.background_worker_wake();
