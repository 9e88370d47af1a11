-- Reading documents: one, a page of them, and the failures of one. Not hot.

create type fetchq.document as (
    subject text,
    status text,
    payload jsonb,
    headers jsonb,
    version int,
    priority int,
    attempts int,
    max_attempts int,
    iterations bigint,
    created_at timestamptz,
    due_at timestamptz,
    picked_at timestamptz,
    settled_at timestamptz,
    lease_ends timestamptz,
    worker text,
    result jsonb,
    progress jsonb,
    last_error text,
    ordering_key text,
    origin jsonb,
    queued jsonb,
    is_from_history boolean,
    expires_at timestamptz
);
comment on type fetchq.document is 'A row of fetchq.doc_get() and fetchq.docs_list()';

create type fetchq.doc_error as (
    at timestamptz,
    attempt int,
    message text,
    details jsonb,
    ref_id text
);
comment on type fetchq.doc_error is 'A row of fetchq.doc_errors()';

create function fetchq.doc_get(queue text, subject text)
returns setof fetchq.document
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'doc_get_wrapper';
comment on function fetchq.doc_get(text, text) is
    'A document as it is now, or as it was when it was last settled and moved to the history; no row if there is neither';

create function fetchq.docs_list(
    queue text, filter jsonb default '{}', max_docs int default 100, after text default null
)
returns setof fetchq.document
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'docs_list_wrapper';
comment on function fetchq.docs_list(text, jsonb, int, text) is
    'A page of the documents that match a filter, in the order of their subjects; for the next page, pass the last subject as after';

create function fetchq.doc_errors(queue text, subject text, max_docs int default 100)
returns setof fetchq.doc_error
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'doc_errors_wrapper';
comment on function fetchq.doc_errors(text, text, int) is
    'The failed attempts of a document, the newest first';
