call bench_work();
