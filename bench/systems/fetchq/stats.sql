select * from fetchq.queue_stats('@queue@');
