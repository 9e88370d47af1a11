insert into bare.@queue@ (next_iteration, payload)
select case when n % (@n@ / @ready@) = 0 then now() - interval '1 hour' else now() + interval '1 day' end + n * interval '1 ms', '@payload@'
from generate_series(1, @n@) n;
vacuum analyze bare.@queue@;
