select pgq.insert_event('@queue@', 'job', '@payload@');
