"""What the benchmarks share: a command line, figures and their file, trials that are kept, a training that is timed, a
process for what may go wrong."""
