select count(pgq.insert_event('@queue@', 'job', '@payload@')) from generate_series(1, @n@);
