insert into bare.@queue@ (priority, payload) select n % 8, '@payload@' from generate_series(1, @n@) n;
vacuum analyze bare.@queue@;
