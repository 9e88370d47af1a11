-- This runs every job of a new queue once, as the loop of maintain.sql does over time. It does not
-- call mnt(), because that is a single transaction, which is long with thousands of queues.
do $$
begin
    while exists (select from fetchq.jobs where iterations = 0 and queue <> '*') loop
        perform fetchq.mnt_job_run(100);
        commit;
    end loop;
end
$$;
