-- Returning active documents: after a failure, or until a time; and the error log.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_reject(
    queue text, subject text, message text, details jsonb default null, ref_id text default null,
    lease bigint default null, delay interval default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reject_wrapper';
comment on function fetchq.doc_reject(text, text, text, jsonb, text, bigint, interval) is
    'Returns an active document after a failure: it is retried after the delay, or by the backoff of the queue, or when its lease would have expired; it is killed after its last attempt';

create function fetchq.doc_snooze(
    queue text, subject text, next_iteration timestamptz default null,
    lease bigint default null, delay interval default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_snooze_wrapper';
comment on function fetchq.doc_snooze(text, text, timestamptz, bigint, interval) is
    'Returns an active document until a time or for a delay, as if it had not been picked: the attempt does not count';

create function fetchq.log_error(
    queue text, subject text, message text, details jsonb, ref_id text default null,
    out queued_logs boolean
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'log_error_wrapper';
comment on function fetchq.log_error(text, text, text, jsonb, text) is
    'Adds an entry to the error log of a queue';
