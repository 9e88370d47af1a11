-- Removing old log entries, snapshots of metrics, and rows of any table. Not hot.

create function fetchq.queue_drop_logs(queue text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_logs_wrapper';
comment on function fetchq.queue_drop_logs(text) is
    'Removes log entries that are older than the retention of the queue';

create function fetchq.queue_drop_logs(queue text, older_than text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_logs_older_wrapper';
comment on function fetchq.queue_drop_logs(text, text) is
    'Removes log entries that are older than an interval';

create function fetchq.queue_drop_logs(queue text, before timestamptz, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_logs_before_wrapper';
comment on function fetchq.queue_drop_logs(text, timestamptz) is
    'Removes log entries that were written before a time';

create function fetchq.queue_drop_metrics(queue text, out removed_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_metrics_wrapper';
comment on function fetchq.queue_drop_metrics(text) is
    'Removes snapshots by the retention policy of the queue';

create function fetchq.queue_drop_metrics(queue text, policy jsonb, out removed_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_metrics_by_wrapper';
comment on function fetchq.queue_drop_metrics(text, jsonb) is
    'Removes snapshots by a policy: the newest of each metric and unit of time stays';

create function fetchq.utils_ts_retain(
    table_name text, field text, unit text, from_time timestamptz, to_time timestamptz,
    out removed_rows bigint
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'utils_ts_retain_wrapper';
comment on function fetchq.utils_ts_retain(text, text, text, timestamptz, timestamptz) is
    'Keeps the newest row of a table for every unit of time between two times';
