"""Whose GPUs idle, and an end to it."""
