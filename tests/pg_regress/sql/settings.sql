-- The settings.
select was_created from fetchq.queue_create('rq_gucs');
show fetchq.compat_version;
show fetchq.legacy_quotes;
show fetchq.strict;
show fetchq.compat;

-- The version that fetchq 4 clients compare with.
select version from fetchq.info();
set fetchq.compat_version = '4.0.0';
select version, extension_version = library_version as is_current from fetchq.info();
begin;
set local fetchq.compat_version = 'anything';
select version from fetchq.info();
commit;
select version from fetchq.info();
reset fetchq.compat_version;
select version from fetchq.info();

-- fetchq.compat sets all three for a client of fetchq 4, but one that is set by itself holds.
create function test.compat() returns text language plpgsql as $$
declare
    pushed int;
begin
    perform fetchq.queue_truncate('rq_gucs');
    perform fetchq.doc_push('rq_gucs', 'q', '{"t": "it''''s"}');
    begin
        pushed := fetchq.doc_push('rq_nope', 'q');
    exception when undefined_object then
    end;
    return (select version from fetchq.info()) || ', ' || (select payload ->> 't' from fetchq_data.rq_gucs__docs)
        || ', ' || coalesce(pushed || ' into an unknown queue', 'an error for an unknown queue');
end $$;
set client_min_messages = error;
select test.compat();
set fetchq.compat = '4.2.0';
select test.compat();
set fetchq.compat = '4.1.1';
select test.compat();
set fetchq.strict = on;
select test.compat();
set fetchq.legacy_quotes = off;
select test.compat();
set fetchq.compat_version = '4.0.2';
select test.compat();
set fetchq.strict = auto;
set fetchq.legacy_quotes = auto;
set fetchq.compat_version = auto;
select test.compat();
set fetchq.compat = '';
select test.compat();
set fetchq.compat = off;
select test.compat();
set fetchq.strict = off;
set fetchq.legacy_quotes = on;
select test.compat();
-- A boolean in any of the words of PostgreSQL.
set fetchq.strict = true;
set fetchq.legacy_quotes = 0;
select test.compat();
set fetchq.strict = no;
set fetchq.legacy_quotes = yes;
select test.compat();
reset fetchq.compat;
reset fetchq.strict;
reset fetchq.legacy_quotes;
reset fetchq.compat_version;
reset client_min_messages;
drop function test.compat();
select fetchq.queue_truncate('rq_gucs', true);
-- A setting of the role or the database applies to new sessions.
create role regress_fetchq_old login;
alter role regress_fetchq_old set fetchq.compat = '4.1.1';
select unnest(setconfig) from pg_db_role_setting s join pg_roles r on r.oid = s.setrole where r.rolname = 'regress_fetchq_old';
drop role regress_fetchq_old;

-- Apostrophes are stored unchanged.
create view test.docs as select subject, payload from fetchq_data.rq_gucs__docs order by seq;
select fetchq.doc_push('rq_gucs', 'p1', '{"t": "it''s and it''''s"}');
select fetchq.doc_push('rq_gucs', 'p2', 0, 0, '2020-01-01', '{"t": "it''''s"}');
select fetchq.doc_append('rq_gucs', '{"t": "it''''s"}', 1) is not null as appended;
select * from fetchq.doc_upsert('rq_gucs', 'p3', 2, 0, '2020-01-01', '{"t": "it''''s"}');
select payload from test.docs;
select fetchq.queue_truncate('rq_gucs', true);

-- fetchq.legacy_quotes: each pair of apostrophes becomes one, where clients double them.
set fetchq.legacy_quotes = on;
select fetchq.doc_push('rq_gucs', 'p1', '{"t": "it''''s", "k''''k": ["''''", "''''''''"], "single": "it''s"}');
select fetchq.doc_push('rq_gucs', 'p2', 0, 0, '2020-01-01', '{"t": "it''''s"}');
select fetchq.doc_append('rq_gucs', '{"t": "it''''s"}', 1) is not null as appended;
select * from fetchq.doc_upsert('rq_gucs', 'p3', 2, 0, '2020-01-01', '{"t": "it''''s"}');
select * from fetchq.doc_upsert('rq_gucs', 'p3', 2, 0, '2020-01-01', '{"u": "it''''s"}');
select payload from test.docs;
select fetchq.queue_truncate('rq_gucs', true);
-- Three rounds as the old client makes them: read the document, double its apostrophes, send it.
select fetchq.doc_push('rq_gucs', 'round', replace($j${"t": "it's \"quoted\" \\ 𝄞"}$j$, '''', '''''')::jsonb);
do $$
declare
    got jsonb;
begin
    for i in 1..3 loop
        select payload into got from fetchq.doc_pick('rq_gucs', 0, 1, '5m');
        perform fetchq.doc_reschedule('rq_gucs', 'round', '2020-01-01', replace(got::text, '''', '''''')::jsonb);
        perform fetchq.doc_pick('rq_gucs', 0, 1, '0s');
        perform fetchq.doc_reject('rq_gucs', 'round', 'it''''s "no" \ 𝄞', '{"d": "it''''s"}', 'ref''''s');
    end loop;
end $$;
select payload from test.docs;
select message, details, ref_id from fetchq_data.rq_gucs__logs order by id;
select fetchq.log_error('rq_gucs', 'round', 'it''''s', '{"d": "it''''s"}');
select message, details from fetchq_data.rq_gucs__logs order by id desc limit 1;
select count(*) from fetchq.doc_pick('rq_gucs', 0, 1, '5m');
select fetchq.doc_complete('rq_gucs', 'round', '{"c": "it''''s"}');
select payload from test.docs;
select fetchq.doc_push('rq_gucs', 'k');
select subject from fetchq.doc_pick('rq_gucs', 0, 1, '5m');
select fetchq.doc_kill('rq_gucs', 'k', '{"k": "it''''s"}');
select payload from test.docs where subject = 'k';
-- Doubled apostrophes never break JSON.
select fetchq.doc_push('rq_gucs', 'json', '{"a''''": {"b": ["''''", 1, null, true, "\"''''\""]}}');
select payload from test.docs where subject = 'json';
reset fetchq.legacy_quotes;

-- The plan cache: with room for one queue everything still works.
set fetchq.plan_cache_queues = 1;
select was_created from fetchq.queue_create('rq_gucs2');
do $$ begin for i in 1..20 loop
    perform fetchq.doc_push('rq_gucs', 'c' || i);
    perform fetchq.doc_push('rq_gucs2', 'c' || i);
end loop; end $$;
select test.exact('rq_gucs');
select test.exact('rq_gucs2');
reset fetchq.plan_cache_queues;
-- Plans do not depend on the session's search_path, nor on objects in it.
create schema regress_evil;
create function regress_evil.now() returns timestamptz language sql as $$ select timestamptz '1999-01-01' $$;
create function regress_evil.eq(int, int) returns boolean language sql as $$ select false $$;
create operator regress_evil.= (leftarg = int, rightarg = int, function = regress_evil.eq);
create table regress_evil.queues (x int);
set search_path = regress_evil, pg_catalog;
select subject from fetchq.doc_pick('rq_gucs2', 0, 1, '5m');
select fetchq.doc_complete('rq_gucs2', 'c1');
select * from fetchq.mnt_run('rq_gucs2', 10);
select was_created from fetchq.queue_create('rq_gucs3');
select fetchq.doc_push('rq_gucs3', 's1');
select subject from fetchq.doc_pick('rq_gucs3');
select * from fetchq.doc_upsert('rq_gucs3', 's2', 0, 0, '2020-01-01', '{}');
select fetchq.doc_drop('rq_gucs3', 's1');
select current_value from fetchq.metric_get('rq_gucs3', 'cnt');
select was_dropped from fetchq.queue_drop('rq_gucs3');
reset search_path;
set client_min_messages = warning;
drop schema regress_evil cascade;
reset client_min_messages;
drop view test.docs;
select was_dropped from fetchq.queue_drop('rq_gucs');
select was_dropped from fetchq.queue_drop('rq_gucs2');
