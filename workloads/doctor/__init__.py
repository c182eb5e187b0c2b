"""Checks that a place is fit for the workloads."""
