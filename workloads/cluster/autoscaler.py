"""The state of Ray's nodes and the last reply of its autoscaler, read from parts of Ray that it calls private.

Ray's public parser drops the one list that tells an infeasible request from a slow one. If a later Ray moves these
parts, nothing is known, and a wait ends at its time limit instead of early.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError


@dataclass(frozen=True, kw_only=True)
class AutoscalerReply:
    """One reply about the whole cluster."""

    resource_version: int
    """Version of the cluster's resources when the reply was made; grows while Ray runs."""
    seen_version: int | None
    """Newest version that the autoscaler had seen when it reported; None where no autoscaler reports."""
    infeasible_groups: tuple[str, ...]
    """Per placement group that no node type can hold: Ray's text, which begins with the group's id."""
    launching: int
    """Nodes asked for, or started and not yet part of Ray."""
    failed: int
    """Attempts to add a node that failed; a stock-out shows here."""


def read() -> AutoscalerReply | None:
    """The newest reply of the cluster this process is connected to; None where this Ray does not offer it."""
    try:
        client = importlib.import_module("ray._raylet").GcsClient(address=ray.get_runtime_context().gcs_address)
        reply = importlib.import_module("ray.core.generated.autoscaler_pb2").GetClusterStatusReply()
        reply.ParseFromString(client.get_cluster_status())
        scaling = reply.autoscaling_state  # empty where no autoscaler reports
        return AutoscalerReply(
            resource_version=reply.cluster_resource_state.cluster_resource_state_version,
            seen_version=scaling.last_seen_cluster_resource_state_version
            if reply.HasField("autoscaling_state")
            else None,
            infeasible_groups=tuple(str(group.details) for group in scaling.infeasible_gang_resource_requests),
            launching=sum(it.count for it in scaling.pending_instance_requests) + len(scaling.pending_instances),
            failed=len(scaling.failed_instance_requests),
        )
    except (ImportError, AttributeError):
        return None


def draining() -> dict[str, float]:
    """Nodes that Ray will give up: id -> when, unix time, infinite where nobody named one. Empty if it is not known."""
    try:
        nodes = importlib.import_module("ray._private.state").state.get_draining_nodes()
    except (ImportError, AttributeError, RayError, RuntimeError):  # also while Ray's control store is out of reach
        return {}
    return {node: milliseconds / 1000 or math.inf for node, milliseconds in nodes.items()}


def settled_seconds() -> float | None:
    """Seconds since a node last joined or left; None if that is not known."""
    try:
        changes = [max(node.start_time_ms, node.end_time_ms) for node in _nodes()]
    except (ImportError, AttributeError, RayError):
        return None
    return time.time() - max(changes) / 1000 if changes else None


def joined(ids: Collection[str]) -> float | None:
    """Unix time at which the first of some nodes joined Ray, by their ids; None if that is not known."""
    try:
        times = [node.start_time_ms for node in _nodes() if node.node_id.hex() in ids]
    except (ImportError, AttributeError, RayError):
        return None
    return min(times) / 1000 if times else None


def _nodes() -> list[Any]:
    client = importlib.import_module("ray._raylet").GcsClient(address=ray.get_runtime_context().gcs_address)
    return list(client.get_all_node_info().values())
