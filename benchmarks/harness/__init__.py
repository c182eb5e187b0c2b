"""What the benchmarks share: a command line, figures and their file, stored trials, a timed training, and a separate
process for measurements that may fail."""
