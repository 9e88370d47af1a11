-- Adding or changing many documents in one call.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_upsert_many(queue text, docs jsonb, out subject text, out action text)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_upsert_many_wrapper';
comment on function fetchq.doc_upsert_many(text, jsonb) is
    'Upserts a JSON array of documents; gives created, updated or skipped for each';
