select count(*) from pgmq.send_batch('jobs', array_fill('@payload@'::jsonb, array[@n@]));
