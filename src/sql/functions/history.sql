-- The history of queues. Not hot.

create type fetchq.settled_document as (
    queue varchar,
    id bigint,
    settled_at timestamptz,
    outcome text,
    subject varchar,
    version int,
    priority int,
    attempts int,
    iterations bigint,
    created_at timestamptz,
    payload jsonb,
    last_error text,
    ordering_key text,
    origin jsonb,
    worker text,
    headers jsonb,
    due_at timestamptz,
    picked_at timestamptz,
    ran interval,
    result jsonb,
    progress jsonb,
    max_attempts int,
    position text
);
comment on type fetchq.settled_document is 'A row of fetchq.queue_history()';

create function fetchq.queue_history(
    queue text default null, filter jsonb default '{}', max_docs int default null,
    after text default null
)
returns setof fetchq.settled_document
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_history_wrapper';
comment on function fetchq.queue_history(text, jsonb, int, text) is
    'The history of a queue, the newest entries first, or of all queues whose history the caller may read; for the next page, pass the last position as after';

create view fetchq.history as select * from fetchq.queue_history();
comment on view fetchq.history is
    'Settled documents of all queues that keep a history';

create function fetchq.queue_trim_history(
    queue text, max_docs int default 10000,
    out affected bigint
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_trim_history_wrapper';
comment on function fetchq.queue_trim_history(text, int) is
    'Removes documents that have been in the history for longer than the queue keeps them; maintenance also does so';

create function fetchq.queue_drop_history(
    queue text, filter jsonb default '{}', max_docs int default 1000,
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'queue_drop_history_wrapper';
comment on function fetchq.queue_drop_history(text, jsonb, int, boolean) is
    'Removes entries that match a filter from the history, the oldest first, before their retention time is over';
