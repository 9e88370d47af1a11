-- `doc_append` for a list of payloads.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_append_many(
    queue text, payloads jsonb[], version int default 0, priority int default 0,
    out subject text
)
returns setof text
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_many_wrapper';
comment on function fetchq.doc_append_many(text, jsonb[], int, int) is
    'Adds documents that are due now and are picked in their order; gives the generated subjects';
