"""Kubernetes objects as plain data: Ray pods, mounts, network and admission policies."""
