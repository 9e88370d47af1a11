-- Extending leases: of one document, and of a list of them.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_extend(
    queue text, subject text, duration interval, lease bigint default null,
    progress jsonb default null,
    out lease_ends timestamptz, out stop boolean
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_extend_wrapper';
comment on function fetchq.doc_extend(text, text, interval, bigint, jsonb) is
    'Extends a lease to a duration from now, and stores progress if it is given; returns its end, and whether the worker should stop: an end of NULL means that the document was cancelled';

create type fetchq.extended as (
    queue text, subject text, outcome text, lease_ends timestamptz, stop boolean
);
comment on type fetchq.extended is 'What became of a lease, as docs_extend() returns it';

create function fetchq.docs_extend(queue text, extensions jsonb, duration interval default null)
returns setof fetchq.extended
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_extend_wrapper';
comment on function fetchq.docs_extend(text, jsonb, interval) is
    'Extends the leases of a list of documents to a duration from now, and stores their progress: one heartbeat for all documents of a process; returns for each whether it was extended, limited by max_run, cancelled or lost, and whether the worker should stop';
