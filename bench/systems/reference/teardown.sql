drop table if exists reference.@queue@;
select fetchq.queue_drop(name) from fetchq.queues where name = 'shape';
