-- A worker in SQL alone:  psql "$DATABASE_URL" -v queue=jobs -v name=psql-1 -f worker.sql
-- Start it as often as you like; psql-worker.sh stops it on SIGTERM. Leases last as long
-- as the session. Cut `job` out and write your own.
\set ON_ERROR_STOP on
\set QUIET on

-- The work. What it writes is committed together with the completion, or not at all; an
-- error rejects the document.
begin;
select pg_advisory_xact_lock(hashtext('create function job')) \g /dev/null
create or replace function job(queue text, doc jsonb) returns void language plpgsql as $$
begin
    perform pg_sleep(coalesce((doc #>> '{payload,sleep}')::float, 0));
    if doc #> '{payload,fail}' is not null then
        raise exception '%', doc #>> '{payload,fail}';
    end if;
    insert into results (subject, result) values (doc ->> 'subject', '{"worked": true}');
end $$;
commit;

-- The server looks whether we are still there (from PostgreSQL 14 on): the call would
-- go on without us.
select set_config(name, '1s', false) from pg_settings where name = 'client_connection_check_interval' \g /dev/null
select set_config('fetchq.worker', :'name', false) \g /dev/null
call fetchq.work(:'queue', 'job');
