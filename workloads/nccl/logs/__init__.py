"""Readers of NCCL's own logs and errors: the path that it took, and what went wrong."""
