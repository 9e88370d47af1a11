-- Leasing documents, in all forms of fetchq 4.
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
