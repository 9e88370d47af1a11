-- Schedules. Not hot.

create function fetchq.schedule_create(
    name text, queue text, schedule text, payload jsonb default '{}', timezone text default 'UTC',
    version int default 0, priority int default 0, catch_up text default 'once',
    catch_up_limit int default 100, jitter interval default '0',
    starts_at timestamptz default null, ends_at timestamptz default null,
    replace boolean default false, headers jsonb default null,
    out was_created boolean, out next_tick timestamptz
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_create_wrapper';
comment on function fetchq.schedule_create(text, text, text, jsonb, text, int, int, text, int, interval, timestamptz, timestamptz, boolean, jsonb) is
    'Pushes a document at each tick of a cron expression or an interval; with replace, changes an existing schedule';

create function fetchq.schedule_drop(name text, queue text default null, out was_dropped boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_drop_wrapper';
comment on function fetchq.schedule_drop(text, text) is
    'Drops a schedule, but not its documents; returns false if there is none of that name, or none in the queue that is named';

create function fetchq.schedule_pause(name text, queue text default null, out was_paused boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_pause_wrapper';
comment on function fetchq.schedule_pause(text, text) is
    'Pauses a schedule; returns false if it is already paused';

create function fetchq.schedule_resume(
    name text, queue text default null,
    out was_resumed boolean, out next_tick timestamptz
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_resume_wrapper';
comment on function fetchq.schedule_resume(text, text) is
    'Resumes a schedule with its next tick, without the ticks during the pause; a failing one that was not paused is retried at once';

create type fetchq.schedule as (
    name text,
    queue varchar,
    schedule text,
    timezone text,
    state text,
    next_tick timestamptz,
    last_tick timestamptz,
    ticks bigint,
    catch_up text,
    catch_up_limit int,
    jitter interval,
    version int,
    priority int,
    payload jsonb,
    headers jsonb,
    starts_at timestamptz,
    ends_at timestamptz,
    created_at timestamptz,
    attempts int,
    last_error text,
    owner text
);
comment on type fetchq.schedule is 'A row of fetchq.schedule_list()';

create function fetchq.schedule_list(queue text default null)
returns setof fetchq.schedule
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres_verbose
as 'MODULE_PATHNAME', 'schedule_list_wrapper';
comment on function fetchq.schedule_list(text) is
    'All schedules, or those of one queue, and their states: active, paused, failing or ended';

create function fetchq.schedule_preview(
    schedule text, timezone text default 'UTC', from_time timestamptz default pg_catalog.now(),
    n int default 10
)
returns table (tick timestamptz, local_time text)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_preview_wrapper';
comment on function fetchq.schedule_preview(text, text, timestamptz, int) is
    'The next n ticks after a time, from which an interval is counted';

create function fetchq.schedule_run(
    max_schedules int default 100, queue text default null,
    out processed bigint, out affected bigint
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_run_wrapper';
comment on function fetchq.schedule_run(int, text) is
    'Runs the schedules that are due now, of all queues or of one, and returns the numbers of schedules and of new documents; the background worker and mnt_job_run() also run them';

create function fetchq.schedule_run_at(
    max_schedules int, as_of timestamptz,
    out processed bigint, out affected bigint
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_run_at_wrapper';
comment on function fetchq.schedule_run_at(int, timestamptz) is
    'For tests: runs the schedules that are due at a given time';

create function fetchq.schedule_tick(
    name text, queue text default null,
    out subject text, out was_created boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'schedule_tick_wrapper';
comment on function fetchq.schedule_tick(text, text) is
    'Pushes the document of an extra tick now; the schedule itself does not change, and may be paused or ended';
