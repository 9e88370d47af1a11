insert into bare.@queue@ (status, next_iteration, payload)
select case when n % (@n@ / @ready@) = 0 then 1 else 3 end, now() - interval '1 day' + n * interval '1 ms', '@payload@'
from generate_series(1, @n@) n;
vacuum analyze bare.@queue@;
