-- Routes the calls of fetchq to the nodes of a Citus cluster, by queue: see docs/guides/citus.md.
-- For psql, as a superuser, in a database with the extensions citus and fetchq:
--
--   psql -X -f setup.sql                 on the coordinator, once
--   psql -X -v worker=on -f setup.sql    on each other node
--
-- Run it again on the coordinator after an update of fetchq, and on each node after a restore.
\set ON_ERROR_STOP on
\set QUIET on
set client_min_messages = warning;

\if :{?worker}
\else
-- The map: a queue lives on the node that has the shard of its name. The table stays empty.
select pg_catalog.to_regclass('public.fetchq_places') is null as is_new \gset
\if :is_new
create table public.fetchq_places (queue text primary key);
select create_distributed_table('public.fetchq_places', 'queue', colocate_with => 'none');
\endif

-- Every function and procedure of fetchq with an argument named queue. queue_place_set() is about the node
-- that runs it. With force_delegation a call is also routed inside a transaction.
select pg_catalog.format(
    'select create_distributed_function(%L::regprocedure, ''queue'', colocate_with => ''public.fetchq_places'', force_delegation => true)',
    p.oid::regprocedure)
from pg_catalog.pg_proc p
join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
join pg_catalog.pg_extension e on d.refclassid = 'pg_catalog.pg_extension'::regclass and e.oid = d.refobjid
where e.extname = 'fetchq' and p.proname <> 'queue_place_set'
    and pg_catalog.array_position(p.proargnames, 'queue') <= p.pronargs
order by p.oid::regprocedure::text \gexec
\endif

-- A call that Citus does not route runs on the node of the session. There, this trigger refuses to create
-- a queue that belongs to another node. fetchq.queues is an ordinary table of each node.
set citus.enable_ddl_propagation = off;
create or replace function public.fetchq_check_node() returns trigger
language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    owner record;
begin
    select n.groupid, n.nodename, n.nodeport into owner
    from pg_dist_placement p join pg_dist_node n using (groupid)
    where p.shardid = get_shard_id_for_distribution_column('public.fetchq_places', new.name::text)
        and n.noderole = 'primary';
    if owner.groupid is distinct from (select l.groupid from pg_dist_local_group l) then
        raise exception 'queue "%" belongs to the node %:%, and not to this one', new.name, owner.nodename, owner.nodeport
            using errcode = 'invalid_catalog_name',
                hint = format('Call it in a form that Citus routes: select fetchq.queue_create(%L)', new.name);
    end if;
    return new;
end $$;
drop trigger if exists fetchq_check_node on fetchq.queues;
create trigger fetchq_check_node before insert on fetchq.queues
for each row execute function public.fetchq_check_node();
reset citus.enable_ddl_propagation;
