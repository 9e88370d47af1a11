select * from fetchq.metric_get('@queue@');
