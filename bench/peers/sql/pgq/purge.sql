-- The consumer begins again at the newest tick.
select pgq.force_tick('jobs');
select pgq.ticker('jobs');
select pgq.unregister_consumer('jobs', 'bench');
select pgq.register_consumer('jobs', 'bench');
