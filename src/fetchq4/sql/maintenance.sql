-- The steps of the maintenance of a queue, and its jobs, one at a time.
-- The functions that work on the documents of one queue are hot: no search_path is set, see
-- bootstrap.sql.

create function fetchq.mnt_make_pending(queue text, max_docs int, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_make_pending_wrapper';
comment on function fetchq.mnt_make_pending(text, int) is
    'Makes planned documents that are due pending';

create function fetchq.mnt_reschedule_orphans(queue text, max_docs int, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_reschedule_orphans_wrapper';
comment on function fetchq.mnt_reschedule_orphans(text, int) is
    'Returns documents whose lease expired';

create function fetchq.mnt_mark_dead(queue text, max_docs int, out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_mark_dead_wrapper';
comment on function fetchq.mnt_mark_dead(text, int) is
    'Kills documents whose lease expired at their last attempt';

create function fetchq.mnt_job_pick(duration text, max_jobs int)
returns table (
    id int, task varchar, queue varchar, attempts int, iterations bigint,
    next_iteration timestamptz, last_iteration timestamptz, settings jsonb, payload jsonb
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_pick_wrapper';
comment on function fetchq.mnt_job_pick(text, int) is
    'Claims maintenance jobs that are due; a job that keeps failing backs off';

create function fetchq.mnt_job_run(max_jobs int default 1, out success boolean, out processed int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_run_wrapper';
comment on function fetchq.mnt_job_run(int) is
    'Runs maintenance jobs that are due';

create function fetchq.mnt_job_run(
    duration text, max_jobs int,
    out success boolean, out processed int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_run_for_wrapper';
comment on function fetchq.mnt_job_run(text, int) is
    'Runs maintenance jobs that are due, and claims each for a duration';

create function fetchq.mnt_job_reschedule(id int, delay text, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_job_reschedule_wrapper';
comment on function fetchq.mnt_job_reschedule(int, text) is
    'Plans the next run of a maintenance job';
