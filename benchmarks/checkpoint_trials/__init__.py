"""Checkpoints under kills and failing calls."""
