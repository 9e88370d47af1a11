-- Adding documents with a subject, in all forms of fetchq 4.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_push(
    queue text, subject text, payload jsonb default '{}',
    next_iteration timestamptz default pg_catalog.now(),
    out queued_docs int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_wrapper';
comment on function fetchq.doc_push(text, text, jsonb, timestamptz) is
    'Adds a document with a unique subject; returns 0 if the subject exists';

create function fetchq.doc_push(
    queue text, subject text, version int, priority int, next_iteration timestamptz, payload jsonb,
    out queued_docs int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_full_wrapper';
comment on function fetchq.doc_push(text, text, int, int, timestamptz, jsonb) is
    'Adds a document with a unique subject; returns 0 if the subject exists';

create function fetchq.doc_push(
    queue text, version int, next_iteration timestamptz, documents text,
    out queued_docs int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_list_wrapper';
comment on function fetchq.doc_push(text, int, timestamptz, text) is
    'Adds a list of documents, written as (''subject'', priority, ''json'', {DATA}), ...; returns the number of new documents';

create function fetchq.doc_push(
    queue text, subject text, payload text, next_iteration text,
    out queued_docs int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_untyped_wrapper';
comment on function fetchq.doc_push(text, text, text, text) is
    'The forms with four arguments, for arguments without a type: a document, or a list when the last argument starts with a parenthesis';
