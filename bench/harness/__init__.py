"""The parts of the benchmark: see docs/benchmarks.md."""
