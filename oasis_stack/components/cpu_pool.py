"""What an ordinary node is: the settings that every one of them shares, and what sets each pool apart."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_gcp as gcp

from oasis_stack.facts import names

BOOT_DISK_GB = 100

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
"""The scope that leaves every decision to the roles of the node account."""

SYSTEM_NODES: gcp.container.NodePoolNodeConfigArgsDict = {"labels": names.SYSTEM_POOL_LABELS}
"""Label of the nodes that are always on."""

CPU_NODES: gcp.container.NodePoolNodeConfigArgsDict = {
    "labels": names.CPU_POOL_LABELS,
    "taints": [{"key": key, "value": value, "effect": "NO_SCHEDULE"} for key, value in names.CPU_POOL_LABELS.items()],
}
"""Label and taint of the nodes of CPU workers: only pods that name the taint come there, so an idle pool can shrink."""


def node_config(
    account: pulumi.Input[str], resource_labels: Mapping[str, str]
) -> gcp.container.NodePoolNodeConfigArgsDict:
    """Nodes of any pool of ordinary nodes, the first one included, which lives a minute."""
    return {
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
        "resource_labels": dict(resource_labels),
    }
