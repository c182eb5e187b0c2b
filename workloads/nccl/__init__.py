"""Collective benchmarks with nccl-tests' definitions, units and columns."""
