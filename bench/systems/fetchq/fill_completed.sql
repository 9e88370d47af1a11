insert into fetchq_data.@queue@__docs (subject, status, next_iteration, payload)
select 's' || lpad(n::text, 9, '0'), case when n % (@n@ / @ready@) = 0 then 1 else 3 end, now() - interval '1 day' + n * interval '1 ms', '@payload@'
from generate_series(1, @n@) n;
vacuum analyze fetchq_data.@queue@__docs;
