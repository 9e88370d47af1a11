-- Metrics: recounting and packing them, and their snapshots. Not hot.

create function fetchq.metric_reset(
    queue text,
    out cnt int, out pln int, out pnd int, out act int, out cpl int, out kll int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_reset_wrapper';
comment on function fetchq.metric_reset(text) is
    'Deletes the metrics of a queue, and stores the counts of its documents instead';

create function fetchq.metric_log_pack(out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_log_pack_wrapper';
comment on function fetchq.metric_log_pack() is
    'Packs counter events and pending writes; rows that other sessions have locked wait for the next pack';

create function fetchq.metric_history(
    queue text, since timestamptz default null, until timestamptz default null,
    step interval default null, metrics text[] default null
)
returns table (at timestamptz, metric varchar, value bigint)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'metric_history_wrapper';
comment on function fetchq.metric_history(text, timestamptz, timestamptz, interval, text[]) is
    'The snapshots of the metrics of a queue, by time; with a step, the last value of each step';
