"""The trials of `benchmarks.collectives`."""
