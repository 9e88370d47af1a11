call bench_tick();
