-- Adding many documents in one call.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_push_many(queue text, docs jsonb, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_many_wrapper';
comment on function fetchq.doc_push_many(text, jsonb) is
    'Adds a JSON array of documents {"subject", "payload", "version", "priority", "next_iteration"}; gives the number of new documents';

create function fetchq.doc_push_many(
    queue text, subjects text[], payloads jsonb[], version int default 0, priority int default 0,
    next_iteration timestamptz default pg_catalog.now(),
    out queued_docs int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_many_arrays_wrapper';
comment on function fetchq.doc_push_many(text, text[], jsonb[], int, int, timestamptz) is
    'Adds documents that share version, priority and time; gives the number of new documents';

create function fetchq.doc_append_many(
    queue text, payloads jsonb[], version int default 0, priority int default 0,
    out subject text
)
returns setof text
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_many_wrapper';
comment on function fetchq.doc_append_many(text, jsonb[], int, int) is
    'Adds documents that are due now and are picked in their order; gives the generated subjects';
