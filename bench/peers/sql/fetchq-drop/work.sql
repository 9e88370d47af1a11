call bench_work(@batch@);
