-- The settings of queues. Not hot.

create function fetchq.queue_pause(queue text, out was_paused boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_pause_wrapper';
comment on function fetchq.queue_pause(text) is
    'Pauses a queue, so that nothing can be picked from it; false when it is paused already';

create function fetchq.queue_resume(queue text, out was_resumed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_resume_wrapper';
comment on function fetchq.queue_resume(text) is
    'Resumes a paused queue; false when it is not paused';

create function fetchq.queue_set_max_attempts(
    queue text, max_attempts int,
    out affected_rows int, out was_reindexed boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_max_attempts_wrapper';
comment on function fetchq.queue_set_max_attempts(text, int) is
    'Sets after how many attempts a document is killed';

create function fetchq.queue_set_retry(
    queue text, base interval, factor double precision default 2, max_delay interval default null,
    jitter double precision default 0, max_attempts int default null,
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_retry_wrapper';
comment on function fetchq.queue_set_retry(text, interval, double precision, interval, double precision, int) is
    'Sets the backoff of rejected documents: base * factor ^ (attempts - 1), up to max_delay, earlier or later by up to the share jitter; base NULL: when the lease would have expired';

create function fetchq.queue_set_dead_letter(queue text, target text, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_dead_letter_wrapper';
comment on function fetchq.queue_set_dead_letter(text, text) is
    'Sets the dead-letter queue, to which documents move that are killed after a failure; NULL: they stay';

create function fetchq.queue_set_history(
    queue text, completed interval default null, killed interval default null,
    dropped interval default null,
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_history_wrapper';
comment on function fetchq.queue_set_history(text, interval, interval, interval) is
    'Sets how long settled documents are kept: NULL leaves completed and killed ones in the table, 0 removes them at once, an interval keeps them that long in the history of the queue';

create function fetchq.queue_set_max_active(queue text, max_active int, out affected_rows int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_max_active_wrapper';
comment on function fetchq.queue_set_max_active(text, int) is
    'Sets how many documents of a queue can be active at one time; NULL removes the limit';

create function fetchq.queue_set_rate(
    queue text, picks int, per interval default '1s',
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_rate_wrapper';
comment on function fetchq.queue_set_rate(text, int, interval) is
    'Sets how many documents of a queue can be picked within an interval; NULL removes the limit';

create function fetchq.queue_set_ordered(
    queue text, is_ordered boolean default true,
    out affected_rows int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_set_ordered_wrapper';
comment on function fetchq.queue_set_ordered(text, boolean) is
    'Switches the order of a queue on or off: documents of one ordering key run one at a time, in their order';

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
