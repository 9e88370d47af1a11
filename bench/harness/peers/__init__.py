"""Compares fetchq with the queues that people pick instead: `make bench-peers`."""
