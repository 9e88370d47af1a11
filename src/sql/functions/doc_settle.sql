-- Settling one leased document.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_complete(
    queue text, subject text, payload jsonb default null, lease bigint default null,
    result jsonb default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_complete_wrapper';
comment on function fetchq.doc_complete(text, text, jsonb, bigint, jsonb) is
    'Settles an active document as completed, with a result; with a lease, only while that lease lasts';

create function fetchq.doc_kill(
    queue text, subject text, payload jsonb default null, lease bigint default null,
    message text default null, details jsonb default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_kill_wrapper';
comment on function fetchq.doc_kill(text, text, jsonb, bigint, text, jsonb) is
    'Settles an active document as killed, so that it never runs again; with a lease, only while that lease lasts';

create function fetchq.doc_reschedule(
    queue text, subject text, next_iteration timestamptz default null,
    payload jsonb default null, lease bigint default null, delay interval default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reschedule_wrapper';
comment on function fetchq.doc_reschedule(text, text, timestamptz, jsonb, bigint, interval) is
    'Plans the next iteration of an active document, for a time or after a delay; with a lease, only while that lease lasts';

create function fetchq.doc_drop(
    queue text, subject text, lease bigint default null,
    out affected_rows int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_drop_wrapper';
comment on function fetchq.doc_drop(text, text, bigint) is
    'Settles an active document by removing it; with a lease, only while that lease lasts';
