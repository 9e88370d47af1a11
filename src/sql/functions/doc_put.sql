-- Adding documents whose subject may exist, with a mode that decides what happens then.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_put(
    queue text, subject text default null, payload jsonb default '{}',
    due_at timestamptz default null, version int default 0,
    priority int default 0, mode text default null, ordering_key text default null,
    max_attempts int default null, delay interval default null, headers jsonb default null,
    expires_in interval default null, unique_by text[] default null, unique_per interval default null,
    out action text
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_put_wrapper';
comment on function fetchq.doc_put(text, text, jsonb, timestamptz, int, int, text, text, int, interval, jsonb, interval, text[], interval) is
    'Adds a document; if its subject exists, the mode determines what happens: ignore, replace, merge, earliest, debounce, reset, once; with unique_by, the subject is derived from the content';
