select pgq.finish_batch(:batch);
