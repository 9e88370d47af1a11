-- The handler keeps the time since the job was added.
create or replace function job(payload jsonb) returns void language plpgsql as $$
begin
    insert into public.bench_seen
    values ((extract(epoch from pg_catalog.clock_timestamp())::float8 - (payload ->> 't')::float8) * 1000);
end $$;
