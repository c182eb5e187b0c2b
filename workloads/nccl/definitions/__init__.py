"""Definitions of the measurements: collectives, data patterns, stages and bandwidths."""
