-- Appending documents: one, or a list.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_append(
    queue text, payload jsonb, version int default 0, priority int default 0,
    ordering_key text default null, max_attempts int default null,
    delay interval default null, headers jsonb default null,
    expires_in interval default null,
    out subject varchar
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_wrapper';
comment on function fetchq.doc_append(text, jsonb, int, int, text, int, interval, jsonb, interval) is
    'Adds a document that is due now or after a delay, first in, first out; returns the subject that was generated for it';

create function fetchq.doc_append_many(
    queue text, payloads jsonb[], version int default 0, priority int default 0,
    ordering_key text default null, max_attempts int default null,
    delay interval default null, headers jsonb default null,
    expires_in interval default null,
    out subject text
)
returns setof text
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_many_wrapper';
comment on function fetchq.doc_append_many(text, jsonb[], int, int, text, int, interval, jsonb, interval) is
    'Adds documents that are due now or after a delay and are picked in the order of the list; returns the generated subjects';
