-- Settling leased documents, one or a list of which all are settled alike; and the error log.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_complete(
    queue text, subject text, payload jsonb default null, lease bigint default null,
    result jsonb default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_complete_wrapper';
comment on function fetchq.doc_complete(text, text, jsonb, bigint, jsonb) is
    'Settles a leased document as completed, with a result; a document that doc_lease() has leased needs its lease number, and is settled only while that lease lasts';

create function fetchq.doc_kill(
    queue text, subject text, payload jsonb default null, lease bigint default null,
    message text default null, details jsonb default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_kill_wrapper';
comment on function fetchq.doc_kill(text, text, jsonb, bigint, text, jsonb) is
    'Kills a document, so that it does not run again: a leased one with its lease number, while that lease lasts, or one that nobody has leased';

create function fetchq.doc_reschedule(
    queue text, subject text, due_at timestamptz default null,
    payload jsonb default null, lease bigint default null, delay interval default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reschedule_wrapper';
comment on function fetchq.doc_reschedule(text, text, timestamptz, jsonb, bigint, interval) is
    'Plans the next iteration of a leased document, for a time or after a delay; a document that doc_lease() has leased needs its lease number, and is settled only while that lease lasts';

create function fetchq.doc_drop(
    queue text, subject text, lease bigint default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_drop_wrapper';
comment on function fetchq.doc_drop(text, text, bigint) is
    'Removes a document: a leased one with its lease number, while that lease lasts, or one that nobody has leased';

create function fetchq.doc_reject(
    queue text, subject text, message text, details jsonb default null, ref_id text default null,
    lease bigint default null, delay interval default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reject_wrapper';
comment on function fetchq.doc_reject(text, text, text, jsonb, text, bigint, interval) is
    'Returns an active document after a failure: it is retried after the delay, or according to the backoff of the queue, or when its lease would have expired; it is killed after its last attempt';

create function fetchq.doc_snooze(
    queue text, subject text, due_at timestamptz default null,
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

create function fetchq.doc_complete_many(
    queue text, subjects text[], payloads jsonb[] default null, lease bigint default null,
    results jsonb[] default null,
    out subject text, out settled boolean
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_complete_many_wrapper';
comment on function fetchq.doc_complete_many(text, text[], jsonb[], bigint, jsonb[]) is
    'Settles active documents as completed; with a lease, settles all of them or fails';

create function fetchq.doc_reschedule_many(
    queue text, subjects text[], due_at timestamptz, payloads jsonb[] default null,
    lease bigint default null,
    out subject text, out settled boolean
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reschedule_many_wrapper';
comment on function fetchq.doc_reschedule_many(text, text[], timestamptz, jsonb[], bigint) is
    'Plans the next iteration of active documents; with a lease, settles all of them or fails';

create function fetchq.doc_drop_many(
    queue text, subjects text[], lease bigint default null,
    out subject text, out settled boolean
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_drop_many_wrapper';
comment on function fetchq.doc_drop_many(text, text[], bigint) is
    'Settles active documents by removing them; with a lease, settles all of them or fails';
