-- The extension is dropped and created again in one session. This test runs last, because it
-- drops every queue.
select was_created from fetchq.queue_create('rq_life');
select fetchq.doc_push('rq_life', 's1');
select subject from fetchq.doc_pick('rq_life');
select fetchq.queue_enable_notify('rq_life');

-- The extension cannot be dropped while queues exist: their tables depend on its schema.
\set VERBOSITY terse
drop extension fetchq;
\set VERBOSITY default
select count(*) from fetchq_data.rq_life__docs;
select test.exact('rq_life');

-- CASCADE drops everything.
set client_min_messages = warning;
drop extension fetchq cascade;
reset client_min_messages;
select count(*) from pg_namespace where nspname in ('fetchq', 'fetchq_data');
select test.error($$select fetchq.info()$$);

-- After it was created again it works, although this session has plans of the old objects.
create extension fetchq;
select name from fetchq.queue_status();
select task, queue from fetchq.jobs;
select was_created from fetchq.queue_create('rq_life');
select fetchq.doc_push('rq_life', 's2');
select subject, attempts from fetchq.doc_pick('rq_life');
select fetchq.doc_reject('rq_life', 's2', 'no', '{}');
select fetchq.metric_log_pack() > 0 as packed;
select test.exact('rq_life');
select was_dropped from fetchq.queue_drop('rq_life');

-- Without queues CASCADE is not needed; the second DROP fails.
drop extension fetchq;
create extension fetchq;
select test.error('create extension fetchq');

-- The same in one transaction, rolled back.
select was_created from fetchq.queue_create('rq_life');
select fetchq.doc_push('rq_life', 's1');
begin;
set local client_min_messages = warning;
drop extension fetchq cascade;
create extension fetchq;
select was_created from fetchq.queue_create('rq_life');
select fetchq.doc_push('rq_life', 's2');
rollback;
select subject from fetchq.doc_pick('rq_life');
select test.exact('rq_life');

-- The function for it, which fetchq 4 had too.
set client_min_messages = warning;
select was_destroyed from fetchq.destroy_with_terrible_consequences();
reset client_min_messages;
select count(*) from pg_extension where extname = 'fetchq';
select count(*) from pg_namespace where nspname in ('fetchq', 'fetchq_data');
create extension fetchq;
select count(*) from fetchq.queues;

-- A user's operator in a schema that "create extension" has in its search_path:
-- the install script must not use it, and no view may depend on it.
drop extension fetchq;
create function public.not_you(varchar, varchar) returns boolean language plpgsql as $$
begin
    raise exception 'the operator of public was used';
end $$;
create operator public.= (leftarg = varchar, rightarg = varchar, function = public.not_you);
create extension fetchq;
select was_created from fetchq.queue_create('rq_life');
select fetchq.doc_push('rq_life', 's1');
select metric, current_value from fetchq.metric_get('rq_life');
drop operator public.= (varchar, varchar);
drop function public.not_you(varchar, varchar);
select was_dropped from fetchq.queue_drop('rq_life');
