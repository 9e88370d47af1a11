-- Adding a document, or changing the one that has its subject.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_upsert(
    queue text, subject text, version int, priority int, next_iteration timestamptz, payload jsonb,
    out queued_docs int, out updated_docs int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_upsert_wrapper';
comment on function fetchq.doc_upsert(text, text, int, int, timestamptz, jsonb) is
    'Adds a document, or changes priority, payload and time of the existing one unless it is active';
