-- Packs the counters of all queues: the last call of the maintenance loop may still be at it.
do $$
begin
    for i in 1..100 loop
        perform fetchq.metric_log_pack();
        commit;
        exit when not exists (select from fetchq.counter_tail);
        perform pg_sleep(0.2);
    end loop;
end
$$;
