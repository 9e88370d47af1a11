select pgmq.send('jobs', '@payload@'::jsonb);
