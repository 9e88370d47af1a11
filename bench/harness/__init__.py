"""The parts of the benchmark: see docs/internals/benchmarks.md."""
