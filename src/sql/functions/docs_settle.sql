-- Settling a list of leased documents, each in its own way, and leasing the next ones.
-- Hot: no search_path is set, see bootstrap.sql.

create type fetchq.settlement as (subject text, outcome text, status text);
comment on type fetchq.settlement is 'What became of a document, as docs_settle() returns it';

create function fetchq.docs_settle(
    queue text, settlements jsonb, on_lost text default 'report'
)
returns setof fetchq.settlement
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_settle_wrapper';
comment on function fetchq.docs_settle(text, jsonb, text) is
    'Settles a list of active documents, each in its own way; a document whose lease was lost is reported, and does not keep the others from being settled';

create function fetchq.docs_next(
    queue text, settlements jsonb default '[]', max_docs int default 1,
    duration interval default null, version int default 0, worker text default null,
    binding text default null, on_lost text default 'error'
)
returns setof fetchq.leased
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_next_wrapper';
comment on function fetchq.docs_next(text, jsonb, int, interval, int, text, text, text) is
    'Settles a list of documents as docs_settle() does, then leases the next ones as doc_lease() does, in one transaction';

create function fetchq.docs_next_any(
    queues text[], settlements jsonb default '[]', max_docs int default 1,
    duration interval default null, version int default 0, weights int[] default null,
    worker text default null, binding text default null, on_lost text default 'error'
)
returns setof fetchq.leased_any
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'docs_next_any_wrapper';
comment on function fetchq.docs_next_any(text[], jsonb, int, interval, int, int[], text, text, text) is
    'Settles a list of documents of several queues, then leases the next ones as doc_lease_any() does, in one transaction';
