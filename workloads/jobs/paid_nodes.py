"""The GPU nodes that a stack pays for now: since when, their hourly cost, and whose pods they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from workloads.cluster.stack import DeployedStack
from workloads.reporting.cost import HOUR

ACCELERATOR, QUEUED = "cloud.google.com/gke-accelerator", "cloud.google.com/gke-queued"
"""Label of a node with GPUs, and the taint of a queued one (GKE documentation, "Run GPUs in GKE Standard node pools"
and "Run a large-scale workload with flex-start with queued provisioning")."""

GPU = "nvidia.com/gpu"

Body = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PaidNode:
    """One node with GPUs."""

    name: str
    since: float
    """Unix time of its registration: billing began some minutes before."""
    node_hour_usd: float | None
    """Its maximum hourly cost at list price; None if it is not known."""
    holders: tuple[str, ...]
    """Owners of pods with GPUs on it: `namespace/RayCluster`, or the pod; none if it is idle."""

    def usd(self, now: float) -> float | None:
        """Its maximum cost so far."""
        return None if self.node_hour_usd is None else self.node_hour_usd * (now - self.since) / HOUR


def look(stack: DeployedStack) -> list[PaidNode]:
    """All paid nodes, oldest first.

    Raises:
        WorkloadError: kubectl fails, or may not show nodes or pods.
    """
    nodes = stack.get("nodes", "--selector", ACCELERATOR).get("items", [])
    pods = stack.get("pods", "--all-namespaces").get("items", []) if nodes else []
    found = [_paid(node, pods, stack) for node in nodes]
    return sorted(found, key=lambda node: (node.since, node.name))


def head_line(nodes: list[PaidNode]) -> str:
    """How many nodes there are, and their total hourly cost."""
    prices = [node.node_hour_usd for node in nodes]
    known = [price for price in prices if price is not None]
    idle = sum(not node.holders for node in nodes)
    cost = f", up to {sum(known):,.2f} USD an hour at list price" if len(known) == len(prices) else ""
    return f"{len(nodes)} GPU node{'s' * (len(nodes) != 1)} on{cost}" + (f"; {idle} idle" if idle else "")


def gpus_of(pod: Body) -> int:
    """How many GPUs a pod holds; 0 once it has ended."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    limits = [one.get("resources", {}).get("limits") or {} for one in pod["spec"].get("containers", ())]
    return sum(int(of.get(GPU, 0)) for of in limits)


def _paid(node: Body, pods: Iterable[Body], stack: DeployedStack) -> PaidNode:
    metadata = node["metadata"]
    queued = any(taint.get("key") == QUEUED for taint in node.get("spec", {}).get("taints") or ())
    here = [pod for pod in pods if pod["spec"].get("nodeName") == metadata["name"] and gpus_of(pod)]
    return PaidNode(
        name=metadata["name"],
        since=datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        node_hour_usd=stack.environment.node_hour_usd(queued=queued),
        holders=tuple(dict.fromkeys(map(_holder, here))),
    )


def _holder(pod: Body) -> str:
    metadata = pod["metadata"]
    name = (metadata.get("labels") or {}).get("ray.io/cluster") or metadata["name"]
    return f"{metadata['namespace']}/{name}"
