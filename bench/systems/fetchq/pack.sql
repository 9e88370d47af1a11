-- Packs the counters of all queues.
select fetchq.metric_log_pack();
