-- Waits until the session of maintenance has visited all queues. Their jobs ran before, when settle.sql called them.
do $$
declare
    since timestamptz := (
        select min(backend_start) from pg_stat_activity
        where query like '%mnt_job_run%' and pid <> pg_backend_pid());
begin
    for i in 1..1200 loop
        exit when not exists (select from fetchq.jobs where task = 'mnt' and last_iteration < since);
        commit;
        perform pg_sleep(0.5);
    end loop;
end
$$;
