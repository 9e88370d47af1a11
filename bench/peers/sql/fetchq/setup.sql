create extension fetchq;
select fetchq.queue_create('jobs');
