-- every: 200 ms
select * from fetchq.mnt_job_run(20);
