select fetchq.queue_create('@queue@');
