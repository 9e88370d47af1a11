-- Picking from one queue: leasing documents, and popping them.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_pick(queue text, max_docs int default 1, duration text default '5m')
returns table (
    subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint,
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz,
    lock_upgrade timestamptz, lease bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_wrapper';
comment on function fetchq.doc_pick(text, int, text) is
    'Leases due documents of version 0, by priority and time';

create function fetchq.doc_pick(queue text, duration text)
returns table (
    subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint,
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz,
    lock_upgrade timestamptz, lease bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_text_wrapper';
comment on function fetchq.doc_pick(text, text) is
    'Leases one due document of version 0 for a duration';

create function fetchq.doc_pick(queue text, duration interval)
returns table (
    subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint,
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz,
    lock_upgrade timestamptz, lease bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_interval_wrapper';
comment on function fetchq.doc_pick(text, interval) is
    'Leases one due document of version 0 for a duration';

create function fetchq.doc_pick(queue text, version int, max_docs int, duration text)
returns table (
    subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint,
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz,
    lock_upgrade timestamptz, lease bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_full_text_wrapper';
comment on function fetchq.doc_pick(text, int, int, text) is
    'Leases due documents of a version, by priority and time';

create function fetchq.doc_pick(queue text, version int, max_docs int, duration interval)
returns table (
    subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint,
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz,
    lock_upgrade timestamptz, lease bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pick_full_interval_wrapper';
comment on function fetchq.doc_pick(text, int, int, interval) is
    'Leases due documents of a version, by priority and time';

create type fetchq.leased as (
    subject text, payload jsonb, headers jsonb, version int, priority int, attempts int,
    max_attempts int, iterations bigint, created_at timestamptz, due_at timestamptz,
    picked_at timestamptz, lease_ends timestamptz, lease bigint, last_error text
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
    'Leases due documents of a version, by priority and time; without a duration, for as long as the queue is set to';

create type fetchq.popped as (
    subject varchar,
    payload jsonb,
    version int,
    priority int,
    attempts int,
    iterations bigint,
    created_at timestamptz,
    last_iteration timestamptz,
    next_iteration timestamptz,
    lock_upgrade timestamptz
);
comment on type fetchq.popped is 'A row of fetchq.doc_pop()';

create function fetchq.doc_pop(queue text, version int default 0, max_docs int default 1)
returns setof fetchq.popped
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_pop_wrapper';
comment on function fetchq.doc_pop(text, int, int) is
    'Removes due documents, by priority and time, and returns them; a rollback restores them';
