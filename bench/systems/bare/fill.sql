insert into bare.@queue@ (payload) select '@payload@' from generate_series(1, @n@);
vacuum analyze bare.@queue@;
