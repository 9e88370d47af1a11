call fetchq.queue_wait('{@queue@}', '5 s');
