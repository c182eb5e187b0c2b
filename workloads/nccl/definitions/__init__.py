"""What is measured: collectives, data patterns, stages and bandwidths."""
