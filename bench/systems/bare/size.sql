select 'table', pg_table_size('bare.@queue@') union all select 'indexes', pg_indexes_size('bare.@queue@');
