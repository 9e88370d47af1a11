-- Queues: creating, dropping and truncating them. Not hot.

create function fetchq.queue_create(
    queue text, settings jsonb default '{}',
    out was_created boolean, out queue_id int
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_create_wrapper';
comment on function fetchq.queue_create(text, jsonb) is
    'Creates a queue with settings; an existing one keeps its own, and a notice says which ones differ';

create function fetchq.queue_drop(queue text, out was_dropped boolean, out queue_id int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_wrapper';
comment on function fetchq.queue_drop(text) is
    'Drops a queue with its documents, logs, jobs, schedules and metrics';

create function fetchq.queue_truncate(queue text, empty boolean default false, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_truncate_wrapper';
comment on function fetchq.queue_truncate(text, boolean) is
    'Removes all documents of a queue; with empty, also removes its logs, snapshots and history, and makes its jobs due';

create function fetchq.leases_write(queue text, out written bigint)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'leases_write_wrapper';
comment on function fetchq.leases_write(text) is
    'Has the leases of a queue that are only in shared memory written and committed, and lets none be late until the transaction ends';

create function fetchq.queue_truncate_all(empty boolean default false, out success boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_truncate_all_wrapper';
comment on function fetchq.queue_truncate_all(boolean) is
    'Runs queue_truncate() for every queue';
