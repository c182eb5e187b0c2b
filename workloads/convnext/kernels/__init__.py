"""Kernels of our own, each beside torch's, which stays the fallback."""
