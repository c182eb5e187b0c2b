"""Kubernetes Engine: clusters, node pools, the groups of machines behind them, and operations."""
