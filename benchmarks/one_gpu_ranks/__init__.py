"""Ranks that share one GPU."""
