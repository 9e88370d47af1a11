create function fetchq.doc_revive(queue text, subject text, next_iteration timestamptz default pg_catalog.now(), out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_revive_wrapper';
comment on function fetchq.doc_revive(text, text, timestamptz) is 'Plans a killed or completed document anew, with all its attempts';

create function fetchq.queue_redrive(queue text, max_docs int default 100, filter jsonb default '{}', out affected_rows int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'queue_redrive_wrapper';
comment on function fetchq.queue_redrive(text, int, jsonb) is 'Brings back what failed, the oldest first: killed documents, dead letters of the queue, and those of others that it took; repeat until 0';
