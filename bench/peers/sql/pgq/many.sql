select count(pgq.insert_event('jobs', 'job', '@payload@')) from generate_series(1, @n@);
