select 'table', pg_table_size('fetchq_data.@queue@__docs')
union all select 'indexes', pg_indexes_size('fetchq_data.@queue@__docs')
union all select 'counters', sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'fetchq' and c.relkind = 'r' and (c.relname like 'counter%' or c.relname like 'metrics%');
