"""What Ray's autoscaler last said: the reply behind `ray status`, read from a part of Ray that it calls private.

Ray's public parser drops the one list that tells an infeasible request from a slow one. Should a later Ray move this
part, `read` returns None and a wait ends by its time limit instead of early.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import ray


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
