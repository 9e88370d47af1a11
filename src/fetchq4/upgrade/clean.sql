-- The upgrade from fetchq 4, part 4 of 4: fetchq 4 goes. Each object is dropped by its name and without
-- CASCADE, so that nothing goes with it that the check has not seen.

set local search_path = pg_catalog, pg_temp;

do $$
declare
    r record;
begin
    for r in
        select format('drop table %s', t.tbl::regclass) as sql from fetchq_upgrade.tables t where t.queue is not null
        union all
        select format('drop table fetchq_upgrade_old.%I', k) from unnest(array['queues', 'jobs', 'metrics', 'metrics_writes']) k
        union all
        select format('drop function %s', p.oid::regprocedure)
        from fetchq_upgrade.objects o join pg_proc p on p.oid = o.objid where o.classid = 'pg_proc'::regclass
    loop
        execute r.sql;
    end loop;
end $$;
drop view fetchq_upgrade.tables;
drop schema fetchq_upgrade_old;
drop schema fetchq_upgrade_data;
drop table fetchq_upgrade.problems, fetchq_upgrade.objects, fetchq_upgrade.queues, fetchq_upgrade.views,
    fetchq_upgrade.statements, fetchq_upgrade.foreign_triggers, fetchq_upgrade.grants;
drop function fetchq_upgrade.own_functions(), fetchq_upgrade.own_columns(), fetchq_upgrade.strangers_code(oid),
    fetchq_upgrade.grants_of(oid, text, text[]);
drop schema fetchq_upgrade;
