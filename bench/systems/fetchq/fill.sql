insert into fetchq_data.@queue@__docs (subject, status, payload) select 's' || lpad(n::text, 9, '0'), 1, '@payload@' from generate_series(1, @n@) n;
vacuum analyze fetchq_data.@queue@__docs;
