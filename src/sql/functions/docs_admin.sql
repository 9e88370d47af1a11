-- Bulk administration: acting on all documents that match a filter. No search_path is set: the
-- statements are those of hot functions.

create function fetchq.docs_retry(
    queue text, filter jsonb default '{}', max_docs int default 1000,
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_retry_wrapper';
comment on function fetchq.docs_retry(text, jsonb, int, boolean) is
    'Makes planned and killed documents due now, the oldest first, and completed ones if the filter names that status';

create function fetchq.docs_kill(
    queue text, filter jsonb default '{}', max_docs int default 1000,
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_kill_wrapper';
comment on function fetchq.docs_kill(text, jsonb, int, boolean) is
    'Kills planned and pending documents, the oldest first, and active ones if the filter names that status';

create function fetchq.docs_drop(
    queue text, filter jsonb default '{}', max_docs int default 1000,
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_drop_wrapper';
comment on function fetchq.docs_drop(text, jsonb, int, boolean) is
    'Removes documents, the oldest first; active ones only if the filter names that status';

create function fetchq.docs_move(
    queue text, target text, filter jsonb default '{}', max_docs int default 1000,
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_move_wrapper';
comment on function fetchq.docs_move(text, text, jsonb, int, boolean) is
    'Moves documents that are not active to another queue, the oldest first; those whose subjects exist there stay';

create function fetchq.docs_set_priority(
    queue text, priority int, filter jsonb default '{}', max_docs int default 1000,
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_set_priority_wrapper';
comment on function fetchq.docs_set_priority(text, int, jsonb, int, boolean) is
    'Changes the priority of planned and pending documents, the oldest first';

create function fetchq.docs_set_due(
    queue text, due_at timestamptz default null, delay interval default null,
    filter jsonb default '{}', max_docs int default 1000, dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_set_due_wrapper';
comment on function fetchq.docs_set_due(text, timestamptz, interval, jsonb, int, boolean) is
    'Changes when planned and pending documents are due, the oldest first';

create function fetchq.doc_set_due(
    queue text, subject text, due_at timestamptz default null, delay interval default null,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_set_due_wrapper';
comment on function fetchq.doc_set_due(text, text, timestamptz, interval) is
    'Changes when a planned or pending document is due';

create function fetchq.doc_set_priority(
    queue text, subject text, priority int,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_set_priority_wrapper';
comment on function fetchq.doc_set_priority(text, text, int) is
    'Changes the priority of a planned or pending document';
