create function fetchq.trigger_docs_notify() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_notify_wrapper';
comment on function fetchq.trigger_docs_notify() is 'Trigger made by queue_enable_notify: announces the state a document entered';

create function fetchq.trigger_docs_ready() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_ready_wrapper';
comment on function fetchq.trigger_docs_ready() is 'Trigger of every queue: tells the ready floors of a row that was written';

create function fetchq.trigger_docs_cap() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_cap_wrapper';
comment on function fetchq.trigger_docs_cap() is 'Trigger: keeps the places of a queue with max_active';

create function fetchq.trigger_docs_order() returns trigger
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'trigger_docs_order_wrapper';
comment on function fetchq.trigger_docs_order() is 'Trigger: keeps the lines of an ordered queue';

-- Sessions keep in mind what a queue is set to.
create function fetchq.trigger_queue_changed() returns trigger
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'trigger_queue_changed_wrapper';
comment on function fetchq.trigger_queue_changed() is 'Trigger: tells every session that the settings of a queue changed';

create trigger fetchq_queue_changed after insert or update on fetchq.queues
for each row execute function fetchq.trigger_queue_changed();
alter table fetchq.queues enable always trigger fetchq_queue_changed;
