-- Every job of a new queue once, as the loop of maintain.sql would in time. Not mnt():
-- that is one transaction, and a long one with thousands of queues.
do $$
begin
    while exists (select from fetchq.jobs where iterations = 0 and queue <> '*') loop
        perform fetchq.mnt_job_run(100);
        commit;
    end loop;
end
$$;
