"""Idle GPUs: who holds them, and how to release them."""
