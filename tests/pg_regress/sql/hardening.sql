-- Regression tests of former and possible faults.

-- A user's trigger changes planner settings: neither the trigger nor the session may keep
-- the settings under which fetchq plans its own statements.
select was_created from fetchq.queue_create('rq_hard');
create function test.set_planner() returns trigger language plpgsql as $$
begin
    set local enable_seqscan = on;
    set local enable_sort = on;
    if new.subject = 'boom' then
        raise exception 'on purpose';
    end if;
    return null;
end $$;
create trigger set_planner after insert on fetchq_data.rq_hard__docs
    for each row execute function test.set_planner();
select fetchq.doc_push('rq_hard', 'a');
select fetchq.doc_push('rq_hard', 'boom');
select name, setting from pg_settings
where name in ('enable_seqscan', 'enable_sort', 'enable_bitmapscan', 'plan_cache_mode')
order by name collate "C";
set plan_cache_mode = force_custom_plan;
select fetchq.doc_push('rq_hard', 'b');
show plan_cache_mode;
reset plan_cache_mode;
drop trigger set_planner on fetchq_data.rq_hard__docs;

-- A trigger suppresses the insert. That is an error, and nothing is done.
create function test.suppress() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger suppress before insert on fetchq_data.rq_hard__docs
    for each row execute function test.suppress();
create function test.adds() returns table (call text, result text) language sql as $$
    select c, test.error('select * from fetchq.' || c) from unnest(array[
        $q$doc_append('rq_hard', '{}')$q$, $q$doc_append_many('rq_hard', array['{}', '{}']::jsonb[])$q$,
        $q$doc_push('rq_hard', 'c')$q$, $q$doc_push('rq_hard', 'c', 0, 0, now(), '{}')$q$,
        $q$doc_push('rq_hard', 0, now(), $d$('a', 0, '{}', {DATA}), ('c', 0, '{}', {DATA}), ('d', 0, '{}', {DATA})$d$)$q$,
        $q$doc_upsert('rq_hard', 'c', 0, 0, '2020-01-01', '{}')$q$,
        $q$doc_put('rq_hard', 'c')$q$, $q$doc_put('rq_hard', 'c', mode => 'replace')$q$,
        $q$doc_put_many('rq_hard', '[{"subject": "c"}]')$q$]) c
$$;
select test.delta('rq_hard') is not null as is_noted;
\pset format unaligned
\pset tuples_only on
select * from test.adds();
-- A document that exists is no reason for an error.
select fetchq.doc_push('rq_hard', 'a'), fetchq.doc_put('rq_hard', 'a'), fetchq.doc_put('rq_hard', 'a', mode => 'replace');
select fetchq.doc_push('rq_hard', 0, now(), $$('a', 0, '{}', {DATA}), ('b', 0, '{}', {DATA})$$);
-- Lenient calls return what they did in fetchq 4. doc_put is none of them.
set fetchq.strict = off;
select * from test.adds();
select fetchq.doc_append('rq_hard', '{}') is null as nothing_was_added;
select subject is null as nothing_was_added from fetchq.doc_append_many('rq_hard', array['{}', '{}']::jsonb[]);
reset fetchq.strict;
-- Some are suppressed: none is added.
create or replace function test.suppress() returns trigger language plpgsql as $$
begin
    if new.payload ? 'bad' then return null; end if;
    return new;
end $$;
select test.error($$select fetchq.doc_append_many('rq_hard', array['{}', '{"bad": 1}', '{}']::jsonb[])$$);
select test.error($$select fetchq.doc_put_many('rq_hard', '[{"subject": "x"}, {"subject": "y", "payload": {"bad": 1}}]')$$);
select test.error($q$select fetchq.doc_push('rq_hard', 0, now(), $$('x', 0, '{}', {DATA}), ('y', 0, '{"bad": 1}', {DATA})$$)$q$);
-- A trigger changes the subjects of a list, and suppresses one: no document is added twice.
create or replace function test.suppress() returns trigger language plpgsql as $$
begin
    if new.payload ? 'bad' then return null; end if;
    if new.payload ? 'renamed' then new.subject := 'renamed ' || new.subject; end if;
    return new;
end $$;
select test.error($$select fetchq.doc_append_many('rq_hard', array['{"renamed": 1}', '{"bad": 2}', '{"renamed": 3}', '{"n": 4}']::jsonb[])$$);
-- All are added: their subjects are those that they have.
begin;
create temp table returned on commit drop as
    select subject, n from fetchq.doc_append_many('rq_hard', array['{"renamed": 1}', '{"n": 2}', '{"renamed": 3}']::jsonb[])
        with ordinality as r (subject, n);
select r.n, subject ~ '^renamed', d.payload from returned r left join fetchq_data.rq_hard__docs d using (subject) order by r.n;
rollback;
begin;
set local fetchq.strict = off;
create temp table returned on commit drop as
    select subject, n from fetchq.doc_append_many('rq_hard', array['{"renamed": 1}', '{"bad": 2}', '{"renamed": 3}', '{"n": 4}']::jsonb[])
        with ordinality as r (subject, n);
select r.n, d.payload from returned r left join fetchq_data.rq_hard__docs d using (subject) order by r.n;
select subject ~ '^renamed', payload from fetchq_data.rq_hard__docs where payload ?| array['renamed', 'bad', 'n'] order by payload->'n', payload;
select test.exact('rq_hard');
rollback;
\pset tuples_only off
\pset format aligned
select test.delta('rq_hard');
select test.exact('rq_hard');
drop trigger suppress on fetchq_data.rq_hard__docs;
drop function test.adds();
\set VERBOSITY sqlstate

-- A trigger changes the subjects of documents while a list settles them: they are settled, and counted.
begin;
create function test.renames() returns trigger language plpgsql as $$ begin new.subject := 'new ' || new.subject; return new; end $$;
create trigger renames before update on fetchq_data.rq_hard__docs
for each row when (new.status = 3) execute function test.renames();
select count(*) from fetchq.doc_put_many('rq_hard', '[{"subject": "a"}, {"subject": "b"}, {"subject": "c"}]');
select count(*) from fetchq.doc_pick('rq_hard', 0, 9, '1h');
select subject, outcome from fetchq.docs_settle('rq_hard', '[{"subject": "a", "action": "complete"}, {"subject": "b", "action": "complete"}]');
select fetchq.doc_complete_many('rq_hard', array['c']);
select subject, status from fetchq_data.rq_hard__docs where subject like 'new %' order by subject;
select test.exact('rq_hard');
rollback;

-- A trigger drops the queue whose statement is running.
create function test.drop_queue() returns trigger language plpgsql as $$
begin
    perform fetchq.queue_drop('rq_hard');
    return null;
end $$;
create trigger drop_queue after insert on fetchq_data.rq_hard__docs
    for each row execute function test.drop_queue();
select fetchq.doc_push('rq_hard', 'd');
drop trigger drop_queue on fetchq_data.rq_hard__docs;

-- A trigger uses another queue while the plan cache has room for one queue only.
set fetchq.plan_cache_queues = 1;
select was_created from fetchq.queue_create('rq_other');
create function test.copy_document() returns trigger language plpgsql as $$
begin
    perform fetchq.doc_push('rq_other', new.subject);
    return null;
end $$;
create trigger copy_document after insert on fetchq_data.rq_hard__docs
    for each row execute function test.copy_document();
select fetchq.doc_push('rq_hard', 'e' || n) from generate_series(1, 3) n;
select (select count(*) from fetchq_data.rq_other__docs) as copied;
reset fetchq.plan_cache_queues;

-- A column whose type was changed causes an error, never a wrong value.
alter table fetchq_data.rq_hard__docs alter version type bigint;
select * from fetchq.doc_pick('rq_hard', 1);
select * from fetchq.doc_pick('rq_hard', 5);
alter table fetchq_data.rq_hard__docs alter version type int;
alter table fetchq_data.rq_hard__docs alter payload type text;
select * from fetchq.queue_top('rq_hard', 0, 5, 0);
alter table fetchq_data.rq_hard__docs alter payload type jsonb using payload::jsonb;
select count(*) from fetchq.doc_pick('rq_hard', 10);

-- A document with the maximum number that the column attempts can store is still picked.
insert into fetchq_data.rq_hard__docs (subject, status, attempts, next_iteration) values ('worn', 1, 2147483647, '2000-01-01');
select subject, attempts from fetchq.doc_pick('rq_hard');

-- An old snapshot cannot see all events of the documents that it would remove.
begin isolation level repeatable read;
select fetchq.queue_truncate('rq_hard');
rollback;

-- The notification trigger is attached as a BEFORE trigger. fetchq's general trigger function, as
-- a BEFORE trigger on another table, must not suppress the row.
create trigger misplaced before insert on fetchq_data.rq_hard__docs
    for each row execute function fetchq.trigger_docs_notify('rq_hard');
select fetchq.doc_push('rq_hard', 'f');
drop trigger misplaced on fetchq_data.rq_hard__docs;
create table test.watched (id int);
create trigger watch before insert or delete on test.watched
    for each row execute function fetchq.trigger_notify_as_json();
insert into test.watched values (1), (2);
delete from test.watched where id = 1;
select id from test.watched;
drop table test.watched;
\set VERBOSITY default

select was_dropped from fetchq.queue_drop('rq_hard');
select was_dropped from fetchq.queue_drop('rq_other');
drop function test.set_planner(), test.suppress(), test.drop_queue(), test.copy_document();
