create schema if not exists reference;
select fetchq.queue_create('shape');
create table reference.@queue@ (like fetchq_data.shape__docs including all);
select format('alter table reference.@queue@ set (%s)', array_to_string(reloptions, ', ')) from pg_class
where oid = 'fetchq_data.shape__docs'::regclass and reloptions is not null \gexec
