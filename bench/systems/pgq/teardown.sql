create extension if not exists pgq;
select pgq.drop_queue(queue_name, true) from pgq.queue where queue_name = '@queue@';
