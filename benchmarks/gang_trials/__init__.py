"""The trials of `benchmarks.gangs`, on an emulated platform of their own."""
