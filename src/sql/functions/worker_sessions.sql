-- Workers and their leases. Not hot.

create function fetchq.worker_release(name text, out affected bigint)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'worker_release_wrapper';
comment on function fetchq.worker_release(text) is
    'Returns all documents that a worker has leased, as if they had not been picked';

create function fetchq.worker_stop(name text, out was_asked boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'worker_stop_wrapper';
comment on function fetchq.worker_stop(text) is
    'Asks a worker to stop: worker_wait(), docs_extend() and doc_extend() report it, and fetchq.work() ends after its current document';

create function fetchq.worker_stop_requested(
    queue text, name text, since timestamptz,
    out is_requested boolean
)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'worker_stop_requested_wrapper';
comment on function fetchq.worker_stop_requested(text, text, timestamptz) is
    'Says whether a worker of a queue was asked to stop at or after a time; NULL, within fetchq.work(), means since that call began';

create type fetchq.lease as (
    queue varchar,
    subject varchar,
    version int,
    attempts int,
    lease bigint,
    worker text,
    pid int,
    picked_at timestamptz,
    lease_ends timestamptz,
    binding text,
    worker_session bigint
);
comment on type fetchq.lease is 'A row of fetchq.lease_list()';

create function fetchq.lease_list(
    queue text default null, max_docs int default null, after text default null
)
returns setof fetchq.lease
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'lease_list_wrapper';
comment on function fetchq.lease_list(text, int, text) is
    'The leased documents of a queue, or of all queues that the caller may read, in the order of queues and subjects; for the next page of a queue, pass the last subject as after';

create view fetchq.leases as select * from fetchq.lease_list();
comment on view fetchq.leases is
    'The leased documents: which worker has leased each, from when and until when';

create view fetchq.workers with (security_barrier) as
with leased as materialized (select * from fetchq.lease_list()),
sessions as (
    select w.name, w.id, w.queue_id, w.pid, w.since, w.known_stops, a.pid is not null as is_alive
    from fetchq.worker_sessions w
    join fetchq.queues q on q.id = w.queue_id and fetchq.queue_has_right(q.name, 'any')
    left join pg_catalog.pg_stat_get_activity(null) a
        on a.pid = w.pid and coalesce(a.backend_start = w.backend_start, true)
)
select
    s.name,
    count(distinct s.pid) filter (where s.is_alive)::int as sessions,
    count(l.subject)::int as documents,
    coalesce(array_agg(distinct l.queue::text order by l.queue::text)
        filter (where l.queue is not null), '{}') as queues,
    min(s.since) as since,
    min(l.picked_at) as oldest_picked_at,
    min(l.lease_ends) as first_lease_ends,
    coalesce(bool_or(t.number <> all (s.known_stops)) filter (where t.number is not null), false)
        as is_asked_to_stop
from sessions s
left join leased l on l.worker_session = s.id
left join fetchq.stop_requests t on t.name = s.name and t.queue_id in (0, s.queue_id)
group by s.name
having bool_or(s.is_alive) or count(l.subject) > 0;
comment on view fetchq.workers is
    'The workers that have picked documents: their sessions and their leases';
