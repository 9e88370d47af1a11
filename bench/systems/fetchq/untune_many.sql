alter database :"DBNAME" reset fetchq.plan_cache_queues;
