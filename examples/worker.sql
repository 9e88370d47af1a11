-- A worker in SQL alone:  psql "$DATABASE_URL" -v queue=jobs -v name=psql-1 -f worker.sql
-- You can start it in several sessions. psql-worker.sh stops it on SIGTERM. Leases last as long
-- as the session. Replace the function `job` with your own.
\set ON_ERROR_STOP on
\set QUIET on

-- The work. What it writes is committed together with the completion, or not at all.
-- An error rejects the document.
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

-- The server checks whether this client is still connected, because the call would go on without
-- it. The setting exists in PostgreSQL 14 and later.
select set_config(name, '1s', false) from pg_settings where name = 'client_connection_check_interval' \g /dev/null
select set_config('fetchq.worker', :'name', false) \g /dev/null
call fetchq.work(:'queue', 'job');
