delete from pgmq.q_jobs;
