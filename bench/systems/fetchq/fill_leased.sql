-- There is no vacuum after the leases, because the scenario needs the dead entries at the head.
alter table fetchq_data.@queue@__docs set (autovacuum_enabled = off);
insert into fetchq_data.@queue@__docs (subject, status, next_iteration, payload)
select 's' || lpad(n::text, 9, '0'), 1, now() - interval '1 day' + n * interval '1 ms', '@payload@' from generate_series(1, @n@) n;
vacuum analyze fetchq_data.@queue@__docs;
update fetchq_data.@queue@__docs set status = 2, attempts = 1, next_iteration = now() + interval '1 day' where subject <= 's' || lpad((@n@ / 10)::text, 9, '0');
