"""Measurements that others have published."""
