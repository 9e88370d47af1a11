call fetchq.queue_wait('{@queues@}'::text[], '5 s');
