insert into reference.@queue@ (subject, status, payload) select 'c' || :client_id || '-' || n, 1, '@payload@' from generate_series(:base + 1, :base + @n@) n;
\set base :base + @n@
