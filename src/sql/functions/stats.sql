-- What people and autoscalers want to know of a queue. Not hot.

create type fetchq.queue_stat as (
    queue text,
    ready bigint,
    retrying bigint,
    blocked bigint,
    planned bigint,
    active bigint,
    completed bigint,
    killed bigint,
    oldest_ready interval,
    next_due timestamptz,
    pushed bigint,
    picked bigint,
    succeeded bigint,
    failed bigint,
    lost bigint,
    wait_p50 interval,
    wait_p95 interval,
    wait_p99 interval,
    run_p50 interval,
    run_p95 interval,
    run_p99 interval,
    is_paused boolean,
    is_dead_letter_queue boolean
);
comment on type fetchq.queue_stat is 'A row of fetchq.queue_stats()';

create function fetchq.queue_stats(queue text default null)
returns setof fetchq.queue_stat
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_stats_wrapper';
comment on function fetchq.queue_stats(text) is
    'The state, the totals and the percentiles of a queue, or of all queues on which the caller has a right; never waits for a lock';
