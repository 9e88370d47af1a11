select fetchq.queue_enable_notify('@queue@');
