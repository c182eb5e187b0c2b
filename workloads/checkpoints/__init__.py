"""Checkpoints that are whole or absent: written, committed, verified and found again."""
