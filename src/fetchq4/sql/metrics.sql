-- Metrics: reading, counting and writing them, and taking snapshots. Not hot.

create function fetchq.metric_get(queue text)
returns table (metric varchar, current_value bigint, last_update timestamptz)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_all_of_wrapper';
comment on function fetchq.metric_get(text) is
    'All metrics of a queue, exact at this moment';

create function fetchq.metric_get(
    queue text, metric text,
    out current_value int, out last_update timestamptz, out does_exists boolean
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_wrapper';
comment on function fetchq.metric_get(text, text) is
    'One metric of a queue, exact at this moment';

create function fetchq.metric_get_common(
    queue text,
    out cnt int, out pnd int, out pln int, out act int, out cpl int, out kll int, out ent int,
    out drp int, out pkd int, out prc int, out res int, out rej int, out orp int, out err int
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_common_wrapper';
comment on function fetchq.metric_get_common(text) is
    'The common metrics of a queue';

create function fetchq.metric_get_all()
returns table (
    queue varchar, cnt int, pnd int, pln int, act int, cpl int, kll int, ent int, drp int, pkd int,
    prc int, res int, rej int, orp int, err int
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_all_wrapper';
comment on function fetchq.metric_get_all() is
    'The common metrics of every queue';

create function fetchq.metric_get_total(metric text, out current_value int, out does_exists boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_get_total_wrapper';
comment on function fetchq.metric_get_total(text) is
    'The sum of a metric over all queues';

create function fetchq.metric_compute(
    queue text,
    out cnt int, out pln int, out pnd int, out act int, out kll int, out cpl int
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_compute_wrapper';
comment on function fetchq.metric_compute(text) is
    'Counts the documents of a queue; reads the whole table';

create function fetchq.metric_compute_all()
returns table (queue varchar, cnt int, pln int, pnd int, act int, cpl int, kll int)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_compute_all_wrapper';
comment on function fetchq.metric_compute_all() is
    'Counts the documents of every queue; reads all tables';

create function fetchq.metric_reset_all()
returns table (queue varchar, cnt int, pln int, pnd int, act int, cpl int, kll int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_reset_all_wrapper';
comment on function fetchq.metric_reset_all() is
    'Runs metric_reset() for every queue';

create function fetchq.metric_set(
    queue text, metric text, value int,
    out current_value int, out was_created boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_set_wrapper';
comment on function fetchq.metric_set(text, text, int) is
    'Sets a metric at once';

create function fetchq.metric_increment(
    queue text, metric text, value int,
    out current_value int, out was_created boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_increment_wrapper';
comment on function fetchq.metric_increment(text, text, int) is
    'Adds to a metric at once';

create function fetchq.metric_log_increment(
    queue text, metric text, value int,
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_increment_wrapper';
comment on function fetchq.metric_log_increment(text, text, int) is
    'Adds to a metric at the next pack';

create function fetchq.metric_log_decrement(
    queue text, metric text, value int,
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_decrement_wrapper';
comment on function fetchq.metric_log_decrement(text, text, int) is
    'Subtracts from a metric at the next pack';

create function fetchq.metric_log_set(queue text, metric text, value int, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_set_wrapper';
comment on function fetchq.metric_log_set(text, text, int) is
    'Sets a metric at the next pack';

create function fetchq.metric_snap(queue text, out success boolean, out inserts int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_snap_wrapper';
comment on function fetchq.metric_snap(text) is
    'Takes a snapshot of all metrics of a queue';

create function fetchq.metric_snap(queue text, metric text, out success boolean, out inserts int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_snap_one_wrapper';
comment on function fetchq.metric_snap(text, text) is
    'Takes a snapshot of one metric of a queue';

create function fetchq.metric_snap(queue text, metrics jsonb, out success boolean, out inserts int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_snap_some_wrapper';
comment on function fetchq.metric_snap(text, jsonb) is
    'Takes a snapshot of the metrics in a JSON array';
