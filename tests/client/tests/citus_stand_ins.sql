-- Stand-ins for what setup.sql uses of Citus, for the test of the script on a server without Citus. They
-- check their arguments and note them. The cluster has two nodes: this one has the queues whose names
-- begin with a letter up to m, the other one the rest.
create table pg_dist_local_group (groupid int);
insert into pg_dist_local_group values (1);
create table pg_dist_node (nodeid int, groupid int, nodename text, nodeport int, noderole text);
insert into pg_dist_node values (1, 1, 'db1', 5432, 'primary'), (2, 2, 'db2', 5432, 'primary'), (3, 2, 'db3', 5432, 'secondary');
create table pg_dist_placement (shardid bigint, groupid int);
insert into pg_dist_placement values (101, 1), (102, 2);
create table distributed (what text, argument text, colocate_with text, force_delegation boolean);

create function create_distributed_table(table_name regclass, distribution_column text, distribution_type text default 'hash', colocate_with text default 'default')
returns void language plpgsql as $$
begin
    perform from pg_attribute where attrelid = table_name and attname = distribution_column;
    if not found then
        raise exception 'table % has no column %', table_name, distribution_column;
    end if;
    insert into distributed values (table_name::text, distribution_column, colocate_with, null);
end $$;

create function create_distributed_function(function_name regprocedure, distribution_arg_name text default null, colocate_with text default 'default', force_delegation boolean default null)
returns void language plpgsql as $$
begin
    perform from pg_proc where oid = function_name and proargnames[1:pronargs] @> array[distribution_arg_name];
    if not found or colocate_with::regclass is null then
        raise exception '% has no argument %', function_name, distribution_arg_name;
    end if;
    insert into distributed values (function_name::text, distribution_arg_name, colocate_with, force_delegation);
end $$;

create function get_shard_id_for_distribution_column(table_name regclass, distribution_value text)
returns bigint language sql as $$
    select case when distribution_value < 'n' then 101 else 102 end
$$;
