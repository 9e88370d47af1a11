-- There is no vacuum after the leases, because the scenario needs the dead entries at the head.
alter table bare.@queue@ set (autovacuum_enabled = off);
insert into bare.@queue@ (next_iteration, payload)
select now() - interval '1 day' + n * interval '1 ms', '@payload@' from generate_series(1, @n@) n;
vacuum analyze bare.@queue@;
update bare.@queue@ set status = 2, attempts = 1, next_iteration = now() + interval '1 day' where id <= @n@ / 10;
