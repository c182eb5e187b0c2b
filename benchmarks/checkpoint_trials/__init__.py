"""Checkpoints under kills and under failing calls."""
