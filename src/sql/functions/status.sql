-- The state of fetchq in this database, and the ready floors. Not hot.

create type fetchq.component as (
    component text,
    state text,
    detail text,
    hint text
);
comment on type fetchq.component is 'A row of fetchq.status()';

create function fetchq.status()
returns setof fetchq.component
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'fetchq_status_wrapper';
comment on function fetchq.status() is
    'The state of fetchq in this database: what runs, what is late, what blocks, and what to do';

create type fetchq.ready_stat as (
    slots int,
    slots_used int,
    advances bigint,
    advances_discarded bigint,
    polls_answered bigint,
    full_scans bigint,
    floor_misses bigint,
    late_slots int,
    late_slots_used int
);
comment on type fetchq.ready_stat is 'The row of fetchq.ready_stats()';

create function fetchq.ready_stats()
returns fetchq.ready_stat
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'ready_stats_wrapper';
comment on function fetchq.ready_stats() is
    'The counters of the ready floors since the server started, and the slots of late leases; slots is 0 without shared memory';

create type fetchq.ready_floor as (
    index text,
    version int,
    level int,
    next_iteration timestamptz,
    attempts int,
    seq bigint,
    is_empty boolean
);
comment on type fetchq.ready_floor is 'A row of fetchq.ready_floors()';

create function fetchq.ready_floors(queue text)
returns setof fetchq.ready_floor
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
    'Makes the launcher look for databases that need a background worker, and sessions check the version of the extension, when this transaction commits; returns false if there is no launcher';
