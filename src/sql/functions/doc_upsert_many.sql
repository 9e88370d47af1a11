create function fetchq.doc_upsert_many(queue text, docs jsonb, out subject text, out action text)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_upsert_many_wrapper';
comment on function fetchq.doc_upsert_many(text, jsonb) is 'Plans a JSON array of documents, or changes those that exist: created, updated or skipped';
