-- The settings of queues that fetchq 4 had, a function each. Not hot.

create function fetchq.queue_set_max_attempts(
    queue text, max_attempts int,
    out affected_rows int, out was_reindexed boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_max_attempts_wrapper';
comment on function fetchq.queue_set_max_attempts(text, int) is
    'Sets the number of attempts after which a document is killed';

create function fetchq.queue_set_current_version(
    queue text, version int,
    out affected_rows int, out was_reindexed boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_current_version_wrapper';
comment on function fetchq.queue_set_current_version(text, int) is
    'Sets the current version of a queue';

create function fetchq.queue_set_logs_retention(queue text, retention text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_logs_retention_wrapper';
comment on function fetchq.queue_set_logs_retention(text, text) is
    'Sets how long log entries are kept, as an interval';

create function fetchq.queue_set_metrics_retention(
    queue text, retention text,
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_metrics_retention_wrapper';
comment on function fetchq.queue_set_metrics_retention(text, text) is
    'Sets which snapshots of metrics are kept, as a JSON policy';

create function fetchq.queue_enable_notify(queue text, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_enable_notify_wrapper';
comment on function fetchq.queue_enable_notify(text) is
    'Announces the status that documents change to on the channels fetchq__<queue>__{pln,pnd,act,cpl,kll}';

create function fetchq.queue_disable_notify(queue text, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_disable_notify_wrapper';
comment on function fetchq.queue_disable_notify(text) is
    'Stops announcing the status of documents';
