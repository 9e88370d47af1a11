-- Asked first: dropping a queue that does not exist warns.
select fetchq.queue_drop(name) from fetchq.queues where name = '@queue@';
