-- Waiting. A procedure that sets a search_path cannot end its transaction, and these must: they wait
-- outside of one.

create procedure fetchq.queue_wait(
    queues text[], timeout interval default '30 s', inout ready text default null,
    version int default 0
)
language c
as 'MODULE_PATHNAME', 'queue_wait_wrapper';
comment on procedure fetchq.queue_wait(text[], interval, text, int) is
    'Waits until a document of one of the queues can be picked: gives the queue, or NULL when the time is over';
