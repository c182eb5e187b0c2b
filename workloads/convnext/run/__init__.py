"""One training run on Ray Train, from the command line to the summary."""
