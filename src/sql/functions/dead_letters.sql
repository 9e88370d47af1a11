-- Dead-letter queues: bringing back documents that failed. No search_path is set: the statements
-- are those of hot functions.

create function fetchq.doc_revive(
    queue text, subject text, next_iteration timestamptz default pg_catalog.now(),
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_revive_wrapper';
comment on function fetchq.doc_revive(text, text, timestamptz) is
    'Plans a killed or completed document again, with all its attempts';

create function fetchq.queue_redrive(
    queue text, max_docs int default 100, filter jsonb default '{}',
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'queue_redrive_wrapper';
comment on function fetchq.queue_redrive(text, int, jsonb) is
    'Brings back documents that failed, the oldest first: killed documents of the queue, its dead letters in other queues, and dead letters of other queues in this one; repeat until it gives 0';
