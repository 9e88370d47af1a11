insert into fetchq_data.@queue@__docs (subject, status, next_iteration, payload)
select 's' || lpad(n::text, 9, '0'), (n % (@n@ / @ready@) = 0)::int,
    case when n % (@n@ / @ready@) = 0 then now() - interval '1 hour' else now() + interval '1 day' end + n * interval '1 ms', '@payload@'
from generate_series(1, @n@) n;
vacuum analyze fetchq_data.@queue@__docs;
