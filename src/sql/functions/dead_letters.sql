-- Dead-letter queues: bringing back documents that failed. No search_path is set: the statements
-- are those of hot functions.

create function fetchq.doc_revive(
    queue text, subject text, due_at timestamptz default pg_catalog.now(),
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_revive_wrapper';
comment on function fetchq.doc_revive(text, text, timestamptz) is
    'Plans a killed or completed document again, with all its attempts';

create function fetchq.queue_redrive(
    queue text, max_docs int default 100, filter jsonb default '{}',
    dry_run boolean default false,
    out affected bigint
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'queue_redrive_wrapper';
comment on function fetchq.queue_redrive(text, int, jsonb, boolean) is
    'Brings back documents that failed, the oldest first: killed documents of the queue, its dead letters in other queues, and dead letters of other queues in this one; repeat until it returns 0';

create view fetchq.dead_letters with (security_barrier) as
select
    q.name as queue,
    q.dead_letter as dead_letter_queue,
    d.id is not null as does_exist,
    case when d.id is null then null
        when fetchq.queue_has_right(d.name, 'any') then coalesce(n.value, 0) end as documents,
    coalesce(m.value, 0) as moved
from fetchq.queues q
left join fetchq.queues d on d.name = q.dead_letter
left join (select e.queue, e.value from fetchq.metrics_exact e where e.metric = 'cnt') n on n.queue = d.name
left join (select e.queue, e.value from fetchq.metrics_exact e where e.metric = 'ded') m on m.queue = q.name
where q.dead_letter is not null and fetchq.queue_has_right(q.name, 'any');
comment on view fetchq.dead_letters is
    'The queues that have a dead-letter queue, and how many documents are there';
