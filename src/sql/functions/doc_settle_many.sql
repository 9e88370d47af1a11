-- Settling many leased documents in one call.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_complete_many(
    queue text, subjects text[], payloads jsonb[] default null, lease bigint default null,
    results jsonb[] default null,
    out subject text, out settled boolean
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_complete_many_wrapper';
comment on function fetchq.doc_complete_many(text, text[], jsonb[], bigint, jsonb[]) is
    'Settles active documents as completed; with a lease, it settles all of them or fails';

create function fetchq.doc_reschedule_many(
    queue text, subjects text[], next_iteration timestamptz, payloads jsonb[] default null,
    lease bigint default null,
    out subject text, out settled boolean
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_reschedule_many_wrapper';
comment on function fetchq.doc_reschedule_many(text, text[], timestamptz, jsonb[], bigint) is
    'Plans the next iteration of active documents; with a lease, it settles all of them or fails';

create function fetchq.doc_drop_many(
    queue text, subjects text[], lease bigint default null,
    out subject text, out settled boolean
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_drop_many_wrapper';
comment on function fetchq.doc_drop_many(text, text[], bigint) is
    'Settles active documents by removing them; with a lease, it settles all of them or fails';
