-- The state of fetchq in this database, and the ready floors. Not hot.

create function fetchq.status(out component text, out state text, out detail text, out hint text)
returns setof record
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'fetchq_status_wrapper';
comment on function fetchq.status() is
    'The state of fetchq in this database: what runs, what is late, what blocks, and what to do';

create function fetchq.ready_stats(
    out slots int, out slots_used int, out advances bigint, out advances_discarded bigint,
    out polls_answered bigint, out full_scans bigint, out floor_misses bigint
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'ready_stats_wrapper';
comment on function fetchq.ready_stats() is
    'The counters of the ready floors since the server started; slots is 0 without shared memory';

create function fetchq.ready_floors(
    queue text,
    out index text, out version int, out level int, out next_iteration timestamptz,
    out attempts int, out seq bigint, out is_empty boolean
)
returns setof record
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'ready_floors_wrapper';
comment on function fetchq.ready_floors(text) is
    'The ready floors of a queue: where picks and maintenance begin to search';

create function fetchq.background_worker_wake(out was_woken boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'background_worker_wake_wrapper';
comment on function fetchq.background_worker_wake() is
    'Has the launcher look for databases that need a background worker, when this transaction commits; false when there is no launcher';
