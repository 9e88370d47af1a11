-- Queues that live on another server: every call that names one of them says where it is.
\pset format unaligned
\pset tuples_only on
select was_created from fetchq.queue_create('rq_here');
-- A place is recorded, changed, and removed; false where that changes nothing.
select fetchq.queue_place_set('RQ_Gone', 'db2:5432/app');
select fetchq.queue_place_set('rq_gone', 'db2:5432/app');
select fetchq.queue_place_set('rq_gone', 'db3:5432/app');
select fetchq.queue_place_set('rq_back', 'db3:5432/app'), fetchq.queue_place_set('rq_back', null), fetchq.queue_place_set('rq_back', '');
select queue, place, since <= now() from fetchq.queue_places;
select test.error('select fetchq.queue_place_set(' || c || ')') from unnest(array[
    $$'rq_here', 'db2:5432/app'$$, $$'rq_gone', E'a\nb'$$, $$'rq_gone', repeat('x', 201)$$, $$'rq gone', 'db2'$$, $$null, 'db2'$$]) c;
select fetchq.queue_place_set('rq_here', null);
-- A queue that is dropped can live elsewhere from the same transaction on.
begin;
select was_created from fetchq.queue_create('rq_moved');
select was_dropped from fetchq.queue_drop('rq_moved');
select fetchq.queue_place_set('rq_moved', 'db4');
select test.error($$select fetchq.doc_push('rq_moved', 'a')$$);
rollback;

-- Every function that names a queue, with all arguments and with as few as possible: with the compatibility,
-- whose values would say that nothing is wrong, and without. Queue_has_right only answers for this database.
create function test.of_place(settings text) returns table (function text, arguments int, error text) language plpgsql as $$
begin
    perform set_config('fetchq.compat', settings, true);
    return query select p.proname || '(' || oidvectortypes(p.proargtypes) || ')', k.n,
        test.error(format('select * from fetchq.%I(%s)', p.proname, (
            select string_agg(test.value(p.proargnames[i], format_type(p.proargtypes[i - 1], null), 'rq_gone'), ', ' order by i)
            from generate_series(1, k.n) i)))
    from pg_proc p, lateral (select distinct m as n from unnest(array[p.pronargs::int, p.pronargs - p.pronargdefaults]) m) k
    where p.pronamespace = 'fetchq'::regnamespace and p.prokind = 'f' and p.proname <> 'queue_place_set'
        and p.proargnames[1:k.n] && array['queue', 'queues'];
end $$;
create temp table called as
    select 'strict' as mode, * from test.of_place('') union all select 'lenient', * from test.of_place('4.2.0');
select mode, count(*) > 100, count(distinct error) filter (where error like '3D000 %') from called group by mode order by mode;
select distinct error from called where error like '3D000 %';
select function, arguments, error from called where error not like '3D000 %' and mode = 'strict' order by function collate "C", arguments;
select function, arguments, error from called where error not like '3D000 %' and mode = 'lenient'
except all select function, arguments, error from called where mode = 'strict' order by 1, 2;
drop table called;
drop function test.of_place(text);

-- Lists of queues, a target, and a schedule that changes its queue.
select test.error('select * from fetchq.' || c) from unnest(array[
    $$doc_lease_any('{rq_here,rq_gone}')$$, $$docs_move('rq_here', 'rq_gone', '{"all": true}')$$,
    $$queue_create('rq_gone')$$, $$queue_create('rq_gone', '{"paused": true}')$$,
    $$schedule_create('s', 'rq_gone', '@daily')$$, $$schedule_list('rq_gone')$$, $$schedule_run(1, 'rq_gone')$$]) c;
select count(*) from fetchq.queues;
-- Procedures.
create function test.nothing(payload jsonb) returns void language sql as '';
\set VERBOSITY terse
call fetchq.queue_wait('{rq_here,rq_gone}', '1 h');
call fetchq.doc_await('rq_gone', 'a', '1 h');
call fetchq.work('rq_gone', 'test.nothing');
\echo :SQLSTATE
\set VERBOSITY default
drop function test.nothing(jsonb);
-- A trigger of a user, and a function of another language.
create table test.orders (id int);
create function test.order_placed() returns trigger language plpgsql as $$
begin
    perform fetchq.doc_push('rq_gone', 'order-' || new.id);
    return null;
end $$;
create trigger placed after insert on test.orders for each row execute function test.order_placed();
set fetchq.strict = off;
select test.error('insert into test.orders values (1)');
reset fetchq.strict;
select count(*) from test.orders;
drop table test.orders;
drop function test.order_placed();

-- Dead letters. A document whose dead-letter queue is elsewhere stays with its worker.
select test.error($$select fetchq.queue_configure('rq_here', '{"dead_letter": "rq_gone"}')$$);
select test.error($$select * from fetchq.queue_create('rq_new', '{"dead_letter": "rq_gone"}')$$);
set fetchq.queue_defaults = '{"dead_letter": "rq_gone"}';
select test.error($$select * from fetchq.queue_create('rq_new')$$);
reset fetchq.queue_defaults;
update fetchq.queues set dead_letter = 'rq_gone', max_attempts = 1 where name = 'rq_here';
select fetchq.doc_push('rq_here', s) from unnest('{a,b}'::text[]) s;
select count(*) from fetchq.doc_pick('rq_here', 0, 2, '0s');
select test.error('select * from fetchq.' || c) from unnest(array[
    $$doc_kill('rq_here', 'a')$$, $$doc_reject('rq_here', 'a', 'why', '{}')$$, $$docs_settle('rq_here', '[{"subject": "a", "action": "kill"}]')$$,
    $$queue_redrive('rq_here')$$, $$mnt_mark_dead('rq_here', 9)$$]) c;
\set VERBOSITY terse
select * from fetchq.mnt_run('rq_here', 9);
\set VERBOSITY default
select subject, status from fetchq_data.rq_here__docs order by subject;
update fetchq.queues set dead_letter = null where name = 'rq_here';
-- Documents that came from a queue that is elsewhere stay where they are.
select fetchq.doc_push('rq_here', 'letter');
update fetchq_data.rq_here__docs set origin = '{"queue": "rq_gone", "subject": "letter"}' where subject = 'letter';
select fetchq.queue_redrive('rq_here');
-- A schedule that was left behind fails, and says why.
select was_created from fetchq.schedule_create('rq_left', 'rq_here', '@daily', starts_at => '2100-01-01');
update fetchq.schedules set queue = 'rq_gone' where name = 'rq_left';
\set VERBOSITY terse
select * from fetchq.schedule_run_at(9, '2100-01-02');
\set VERBOSITY default
select test.error($$select fetchq.schedule_pause('rq_left')$$);
select test.error($$select fetchq.schedule_drop('rq_left', 'rq_gone')$$);
delete from fetchq.schedules;

-- Rights. Who may call fetchq learns the place, and who may create queues records it.
create role rq_places_app;
grant usage on schema fetchq, test to rq_places_app;
set role rq_places_app;
select test.error($$select fetchq.doc_push('rq_gone', 'a')$$);
select test.error($$select fetchq.metric_get('rq_gone')$$);
select test.error('select * from fetchq.queue_places');
select test.error($$select fetchq.queue_place_set('rq_gone', null)$$);
reset role;
grant execute on function fetchq.queue_create(text, jsonb) to rq_places_app;
set role rq_places_app;
select test.error($$select fetchq.queue_place_set('rq_here', 'db9')$$);
select fetchq.queue_place_set('rq_other', 'db9');
select component, state, detail, hint from fetchq.status() where component = 'places';
reset role;
revoke all on function fetchq.queue_create(text, jsonb) from rq_places_app;
revoke usage on schema fetchq, test from rq_places_app;
drop role rq_places_app;

-- The state: the first three, and how many more.
select fetchq.queue_place_set('rq_p' || n, 'db' || n) from generate_series(1, 3) n;
select state, detail from fetchq.status() where component = 'places';
-- A queue that is here is served here, whatever is recorded.
insert into fetchq.queue_places values ('rq_here', 'db9');
select fetchq.doc_push('rq_here', 'c');
select detail like '%rq_here%' from fetchq.status() where component = 'places';
-- Without the record the queue can be created.
select fetchq.queue_place_set(queue, null) from fetchq.queue_places order by queue;
select component, state, detail, hint from fetchq.status() where component = 'places';
select was_created from fetchq.queue_create('rq_gone');
select was_dropped from fetchq.queue_drop('rq_gone');
select was_dropped from fetchq.queue_drop('rq_here');
