select pgq.insert_event('jobs', 'job', '@payload@');
