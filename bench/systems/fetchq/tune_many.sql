alter database :"DBNAME" set fetchq.plan_cache_queues = 6000;
