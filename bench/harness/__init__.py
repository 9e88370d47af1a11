"""The parts of the benchmark. docs/internals/benchmarks.md describes it."""
