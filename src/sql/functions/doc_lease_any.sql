-- Leasing documents of several queues in one call.
-- Hot: no search_path is set, see bootstrap.sql.

create type fetchq.leased_any as (
    queue text,
    subject text, payload jsonb, headers jsonb, version int, priority int, attempts int,
    max_attempts int, iterations bigint, created_at timestamptz, due_at timestamptz,
    picked_at timestamptz, lease_ends timestamptz, lease bigint, last_error text
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
    'Leases due documents of several queues, in proportion to the weights of the queues; without a duration, for as long as each queue is set to';
