"""NCCL's own logs and errors, read: the path that it took, and what went wrong."""
