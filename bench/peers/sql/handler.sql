-- The handler of the systems that are driven by SQL. A job does nothing but count. A sequence counts
-- what is not committed yet, so that the benchmark can read it at any time.
create sequence bench_done;
create unlogged table bench_seen (ms float8);
create function job(payload jsonb) returns void language plpgsql as $$
begin
    perform pg_catalog.nextval('public.bench_done');
end $$;
