-- Queues: their ids, indexes, versions and documents. Not hot.

create function fetchq.queue_get_id(queue text, out queue_id bigint)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_get_id_wrapper';
comment on function fetchq.queue_get_id(text) is
    'The id of a queue';

create function fetchq.queue_status()
returns table (id int, name varchar, is_active boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_status_all_wrapper';
comment on function fetchq.queue_status() is
    'All queues, and whether each is active';

create function fetchq.queue_status(queue text)
returns table (id int, name varchar, is_active boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_status_wrapper';
comment on function fetchq.queue_status(text) is
    'One queue, and whether it is active';

create function fetchq.queue_top(queue text, version int, max_docs int, skip int)
returns table (
    subject varchar, payload jsonb, version int, priority int, attempts int, iterations bigint,
    created_at timestamptz, last_iteration timestamptz, next_iteration timestamptz,
    lock_upgrade timestamptz
)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_top_wrapper';
comment on function fetchq.queue_top(text, int, int, int) is
    'A page of the documents of one version, in the order of picking, without leasing them';

create function fetchq.queue_create_indexes(queue text, out was_created boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_create_indexes_wrapper';
comment on function fetchq.queue_create_indexes(text) is
    'Creates the indexes and the ready trigger of a queue where they are missing';

create function fetchq.queue_create_indexes(
    queue text, version int, attempts int,
    out was_created boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_create_indexes_for_wrapper';
comment on function fetchq.queue_create_indexes(text, int, int) is
    'Creates the indexes of a queue where they are missing: they serve every version and any number of attempts';

create function fetchq.queue_drop_indexes(queue text, out was_dropped boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_indexes_wrapper';
comment on function fetchq.queue_drop_indexes(text) is
    'Drops the indexes of a queue except the primary key';

create function fetchq.queue_drop_version(queue text, version int, out was_dropped boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_version_wrapper';
comment on function fetchq.queue_drop_version(text, int) is
    'Says whether a version may be removed: returns false for the current one';
