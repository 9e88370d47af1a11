-- `doc_put` for a JSON array of documents. Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_put_many(
    queue text, docs jsonb, mode text default null,
    out subject text, out action text
)
returns setof record
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_put_many_wrapper';
comment on function fetchq.doc_put_many(text, jsonb, text) is
    'Puts a JSON array of documents, each with its own mode if it names one; returns created, updated, queued or ignored for each';
