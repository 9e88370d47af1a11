-- Leasing documents of one queue, or of several in one call; and popping them.
-- Hot: no search_path is set, see bootstrap.sql.

create type fetchq.leased as (
    subject text, payload jsonb, headers jsonb, version int, priority int, attempts int,
    max_attempts int, iterations bigint, created_at timestamptz, due_at timestamptz,
    picked_at timestamptz, lease_ends timestamptz, lease bigint, last_error text, progress jsonb
);
comment on type fetchq.leased is 'A document that was leased, as doc_lease() returns it';

create function fetchq.doc_lease(
    queue text, max_docs int default 1, duration interval default null, version int default 0,
    worker text default null, binding text default null
)
returns setof fetchq.leased
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_lease_wrapper';
comment on function fetchq.doc_lease(text, int, interval, int, text, text) is
    'Leases due documents of a version, by priority and time; the duration defaults to the setting lease of the queue';

create function fetchq.late_lease(
    docs bigint, subject text, seq bigint, created_at timestamptz, out lease bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'late_lease_wrapper';
comment on function fetchq.late_lease(bigint, text, bigint, timestamptz) is
    'The number of the lease of a document that only shared memory has; for the statements of fetchq';

create type fetchq.leased_any as (
    queue text,
    subject text, payload jsonb, headers jsonb, version int, priority int, attempts int,
    max_attempts int, iterations bigint, created_at timestamptz, due_at timestamptz,
    picked_at timestamptz, lease_ends timestamptz, lease bigint, last_error text, progress jsonb
);
comment on type fetchq.leased_any is 'A document that was leased, and its queue, as doc_lease_any() returns it';

create function fetchq.doc_lease_any(
    queues text[], max_docs int default 1, duration interval default null, version int default 0,
    weights int[] default null, worker text default null, binding text default null
)
returns setof fetchq.leased_any
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_lease_any_wrapper';
comment on function fetchq.doc_lease_any(text[], int, interval, int, int[], text, text) is
    'Leases due documents of several queues, in proportion to the weights of the queues; the duration defaults to the setting lease of each queue';

create type fetchq.popped as (
    subject varchar,
    payload jsonb,
    version int,
    priority int,
    attempts int,
    iterations bigint,
    created_at timestamptz,
    last_iteration timestamptz,
    due_at timestamptz,
    lock_upgrade timestamptz
);
comment on type fetchq.popped is 'A row of fetchq.doc_pop()';

create function fetchq.doc_pop(queue text, version int default 0, max_docs int default 1)
returns setof fetchq.popped
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pop_wrapper';
comment on function fetchq.doc_pop(text, int, int) is
    'Removes due documents, by priority and time, and returns them; a rollback restores them';
