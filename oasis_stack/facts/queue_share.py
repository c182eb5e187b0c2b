"""The share of the queue for GPU nodes that the jobs of one namespace may have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class QueueShare:
    """A part of the queue; together the parts are its pool's nodes, and the heads that the system pool holds."""

    namespace: str
    """Kubernetes namespace; jobs of any other are never admitted."""
    nodes: int
    """GPU nodes that are its own: lent while it does not need them, taken back when it does."""
    heads: int
    """Heads of Ray clusters on the system pool. With fewer than nodes, and so borrowed ones, a job could not take back
    its nodes (kubernetes-sigs/kueue v0.19.2, pkg/scheduler/preemption/classical, `QuantitiesFitInQuota`)."""
    most_nodes: int
    """GPU nodes at once, borrowed ones included."""
    priority: int | None
    """Of all its jobs: who must borrow takes what those of lower priority have borrowed. None: Kueue's own, 0."""
