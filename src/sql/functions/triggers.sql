-- The functions of triggers.
-- Those on documents are hot, because they run for each row: no search_path is set, see
-- bootstrap.sql.

create function fetchq.trigger_docs_ready() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_ready_wrapper';
comment on function fetchq.trigger_docs_ready() is
    'Trigger of every queue: records written documents in the ready floors';

create function fetchq.trigger_docs_notify() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_notify_wrapper';
comment on function fetchq.trigger_docs_notify() is
    'Trigger of queue_enable_notify(): announces the status that a document changes to';

create function fetchq.trigger_docs_cap() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_cap_wrapper';
comment on function fetchq.trigger_docs_cap() is
    'Trigger of a queue with max_active: keeps its lease slots';

create function fetchq.trigger_docs_order() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_order_wrapper';
comment on function fetchq.trigger_docs_order() is
    'Trigger of a queue with an order of its keys: keeps its ordering keys';

create function fetchq.trigger_queue_changed() returns trigger
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'trigger_queue_changed_wrapper';
comment on function fetchq.trigger_queue_changed() is
    'Trigger of the registry: makes every session read the settings of a queue again';

create trigger fetchq_queue_changed after insert or update on fetchq.queues
for each row execute function fetchq.trigger_queue_changed();
alter table fetchq.queues enable always trigger fetchq_queue_changed;
