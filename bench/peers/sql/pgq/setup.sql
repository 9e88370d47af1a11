-- PgQ itself is installed before, from the script of its package.
select pgq.create_queue('jobs');
select pgq.register_consumer('jobs', 'bench');
-- A batch is handled in one transaction, with the end of the batch, as the consumers of skytools do.
-- They look again after a second when there is no batch; this one does after 0.1 seconds.
create procedure bench_work() language plpgsql as $$
declare
    batch bigint;
begin
    loop
        batch := pgq.next_batch('jobs', 'bench');
        commit;
        if batch is null then
            perform pg_sleep(0.1);
        else
            perform job(ev_data::jsonb) from pgq.get_batch_events(batch);
            perform pgq.finish_batch(batch);
        end if;
        commit;
    end loop;
end $$;
-- As the daemon pgqd does with its default settings.
create procedure bench_tick() language plpgsql as $$
begin
    loop
        perform pgq.ticker();
        commit;
        perform pg_sleep(1);
        commit;
    end loop;
end $$;
