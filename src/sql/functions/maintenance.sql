-- Maintenance that any client may run, and its progress.
-- The functions that work on the documents of one queue are hot: no search_path is set, see
-- bootstrap.sql.

create function fetchq.mnt(duration text default '5m', out processed int, out packed int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_wrapper';
comment on function fetchq.mnt(text) is
    'Runs every maintenance job of every queue now, then packs the counters';

create function fetchq.mnt_run(
    queue text, max_docs int,
    out activated_count int, out rescheduled_count int, out killed_count int
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'mnt_run_wrapper';
comment on function fetchq.mnt_run(text, int) is
    'Makes due documents pending, and returns or kills documents whose lease expired, up to max_docs of each';

create function fetchq.mnt_run_all(max_docs int)
returns table (queue varchar, activated_count int, rescheduled_count int, killed_count int)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'mnt_run_all_wrapper';
comment on function fetchq.mnt_run_all(int) is
    'Runs mnt_run() for every queue';

create type fetchq.maintenance_step as (
    pid int,
    service text,
    queue text,
    since timestamptz,
    done bigint
);
comment on type fetchq.maintenance_step is 'A row of fetchq.maintenance_progress()';

create function fetchq.maintenance_progress()
returns setof fetchq.maintenance_step
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'maintenance_progress_wrapper';
comment on function fetchq.maintenance_progress() is
    'What maintenance is doing in this database now: which process, which service, in which queue, since when, and for how many rows so far';

create view fetchq.progress as select * from fetchq.maintenance_progress();
comment on view fetchq.progress is
    'What maintenance is doing in this database now';
