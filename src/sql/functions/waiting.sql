-- Waiting. A procedure that sets a search_path cannot end its transaction, and these must: they wait
-- outside of one.

create procedure fetchq.queue_wait(
    queues text[] default null, timeout interval default '30 s', inout ready text default null,
    version int default 0, queue text default null
)
language c
as 'MODULE_PATHNAME', 'queue_wait_wrapper';
comment on procedure fetchq.queue_wait(text[], interval, text, int, text) is
    'Waits until a document of one of the queues can be picked: returns the queue, or NULL after the timeout';

create procedure fetchq.worker_wait(
    queues text[], worker text, timeout interval default '30 s', leases jsonb default null,
    version int default 0, inout event text default null, inout queue text default null,
    inout subjects text[] default null, inout mark bigint[] default null
)
language c
as 'MODULE_PATHNAME', 'worker_wait_wrapper';
comment on procedure fetchq.worker_wait(text[], text, interval, jsonb, int, text, text, text[], bigint[]) is
    'Waits for an event that concerns a worker: a document can be picked, the worker is asked to stop, or a lease that it has was cancelled or lost; returns the event, or NULL after the timeout';

create procedure fetchq.doc_await(
    queue text, subject text, timeout interval default '30 s', inout status text default null,
    inout result jsonb default null, inout message text default null
)
language c
as 'MODULE_PATHNAME', 'doc_await_wrapper';
comment on procedure fetchq.doc_await(text, text, interval, text, jsonb, text) is
    'Waits until a document is settled: returns what became of it, what its worker returned, and why it was killed; after the timeout, its status';

create procedure fetchq.work_check()
language c
as 'MODULE_PATHNAME', 'work_check_wrapper';
comment on procedure fetchq.work_check() is
    'For fetchq.work(): fails in a transaction block and in a function, where it cannot commit';
