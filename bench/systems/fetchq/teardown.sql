-- This checks for the queue first, because dropping a queue that does not exist causes a warning.
select fetchq.queue_drop(name) from fetchq.queues where name = '@queue@';
