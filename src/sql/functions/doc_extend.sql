-- Extending leases: of one document, and of a whole pick.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_extend(
    queue text, subject text, duration interval, lease bigint default null,
    progress jsonb default null,
    out next_iteration timestamptz, out stop boolean
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_extend_wrapper';
comment on function fetchq.doc_extend(text, text, interval, bigint, jsonb) is
    'Extends a lease to a duration from now, and stores progress if it is given; gives its end, and whether the worker should stop: an end of NULL means that the document was cancelled';

create function fetchq.lease_extend(
    queue text, lease bigint, duration interval default null, subjects text[] default null,
    out affected bigint, out lease_ends timestamptz, out stop boolean
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'lease_extend_wrapper';
comment on function fetchq.lease_extend(text, bigint, interval, text[]) is
    'Extends all documents that a lease still holds to a duration from now; gives how many they are, when the lease ends, and whether the worker should stop';
