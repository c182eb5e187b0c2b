"""What an ordinary node is: the shape of a CPU pool, and the settings that every one of them shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

BOOT_DISK_GB = 100

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The scope that leaves every decision to the roles of the node account."""


@dataclass(frozen=True, kw_only=True)
class PoolArgs:
    """One autoscaled pool of ordinary nodes, bought on demand."""

    machine_type: str
    """Compute Engine machine type."""
    min_nodes: int
    """Nodes of all zones together that are always there, and paid for."""
    max_nodes: int
    """Most nodes of all zones together; the address plan must hold them."""
    labels: Mapping[str, str]
    """Node labels, by which pods choose the pool."""
    dedicated: bool
    """Whether the labels are taints too, so that only pods that name them come here and an idle pool can shrink."""


def node_config(
    account: pulumi.Input[str], pool: PoolArgs | None, labels: Mapping[str, str]
) -> gcp.container.NodePoolNodeConfigArgsDict:
    """Nodes of a CPU pool; without a `pool`, of the first one, which lives a minute."""
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        "disk_type": "pd-balanced",
        "disk_size_gb": BOOT_DISK_GB,
        "image_type": "COS_CONTAINERD",
        "service_account": account,
        "oauth_scopes": [CLOUD_PLATFORM],
        "gcfs_config": {"enabled": True},
        "gvnic": {"enabled": True},
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "shielded_instance_config": {"enable_secure_boot": True, "enable_integrity_monitoring": True},
        "kubelet_config": {"insecure_kubelet_readonly_port_enabled": "FALSE"},
        "metadata": {"disable-legacy-endpoints": "true"},
        "resource_labels": dict(labels),
    }
    if pool is not None:
        config["machine_type"] = pool.machine_type
        config["labels"] = dict(pool.labels)
        if pool.dedicated:
            config["taints"] = [
                {"key": key, "value": value, "effect": "NO_SCHEDULE"} for key, value in pool.labels.items()
            ]
    return config
