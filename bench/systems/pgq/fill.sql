-- per second: 50000
-- An event belongs to the batch of the first tick after its commit.
select pgq.set_queue_config('@queue@', 'ticker_max_count', '@batch@');
do $$
begin
    for i in 1 .. @n@ / @batch@ loop
        perform pgq.insert_event('@queue@', 'job', '@payload@') from generate_series(1, @batch@);
        commit;
        perform pgq.ticker('@queue@');
        commit;
    end loop;
end
$$;
vacuum analyze pgq.tick;
