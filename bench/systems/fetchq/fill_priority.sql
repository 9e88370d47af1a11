insert into fetchq_data.@queue@__docs (subject, status, priority, payload) select 's' || lpad(n::text, 9, '0'), 1, n % 8, '@payload@' from generate_series(1, @n@) n;
vacuum analyze fetchq_data.@queue@__docs;
