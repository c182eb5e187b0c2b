"""The settings that all nodes share, the labels and taint of the system and CPU pools, and the networks of a node: that
of its first interface, and those of its further NICs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from oasis_stack.facts import names
from oasis_stack.facts.machine import BOOT_DISK_GB

SYSTEM_NODES: gcp.container.NodePoolNodeConfigArgsDict = {"labels": names.SYSTEM_POOL_LABELS}
"""Label of the nodes that are always on."""

CPU_NODES: gcp.container.NodePoolNodeConfigArgsDict = {
    "labels": names.CPU_POOL_LABELS,
    "taints": [{"key": key, "value": value, "effect": "NO_SCHEDULE"} for key, value in names.CPU_POOL_LABELS.items()],
}
"""Label and taint of CPU worker nodes: only pods that tolerate the taint run there, so that an idle pool can shrink."""


POOL_IGNORES = (
    # GKE updates it whenever it scales.
    "initialNodeCount",
    "nodeCount",
    # GKE's API was seen to return these, empty, for pools that never asked for them (terraform-google-modules/
    # terraform-google-kubernetes-engine issues 2304 and 2465), and to return a different count of the disks that come
    # with the machine type (GoogleCloudPlatform/cluster-toolkit pull requests 2968 and 3450).
    "nodeConfig.advancedMachineFeatures",
    "nodeConfig.ephemeralStorageLocalSsdConfig",
    "queuedProvisioning",
    # GKE has added keys of its own (terraform-google-modules/terraform-google-kubernetes-engine pull request 114,
    # mozilla/terraform-modules pull request 477).
    "nodeConfig.metadata",
)
"""Arguments of a node pool in which GKE's values were seen to differ from ours. A difference would replace the pool, or
resize it in the case of `nodeCount`; none of ours changes during a pool's life."""


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """The first interface of every node, and the addresses of pods and Services."""

    network_id: pulumi.Input[str]
    """VPC of the nodes' first interface."""
    subnet_id: pulumi.Input[str]
    """Subnet of that VPC in the region."""
    pods_range_name: pulumi.Input[str]
    """Secondary range of the pods."""
    services_range_name: pulumi.Input[str]
    """Secondary range of the Services."""


@dataclass(frozen=True, kw_only=True)
class AdditionalNetwork:
    """The VPC and subnet of one further NIC."""

    network: pulumi.Input[str]
    """VPC name; GKE refuses the cluster's own VPC for a device."""
    subnetwork: pulumi.Input[str]
    """Subnet name, in the cluster's region; one subnet serves one parameter set only."""


def node_config(
    account: pulumi.Input[str], resource_labels: Mapping[str, str], disk_type: str = "pd-balanced"
) -> gcp.container.NodePoolNodeConfigArgsDict:
    """Settings of any node, including those of the first pool, which lives for a minute.

    Args:
        account: email of the account that the nodes run as.
        resource_labels: labels of the machines and their disks, for the bill.
        disk_type: type of the boot disk.
    """
    return {
        "disk_type": disk_type,
        "disk_size_gb": BOOT_DISK_GB,
        "image_type": "COS_CONTAINERD",
        "service_account": account,
        # Leaves every decision to the roles of the account.
        "oauth_scopes": [names.CLOUD_PLATFORM_SCOPE],
        "gcfs_config": {"enabled": True},
        "gvnic": {"enabled": True},
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "shielded_instance_config": {"enable_secure_boot": True, "enable_integrity_monitoring": True},
        "kubelet_config": {
            "insecure_kubelet_readonly_port_enabled": "FALSE",
            # Otherwise, when one process takes too much memory, the kernel ends every process of its container, Ray's
            # own included (kubernetes/kubernetes pull request 126096, ray-project/kuberay issue 3897).
            "single_process_oom_kill": True,
        },
        "metadata": {"disable-legacy-endpoints": "true"},
        # Never empty: the provider cannot remove the last label (hashicorp/terraform-provider-google issue 15848).
        "resource_labels": {"managed-by": "oasis", **resource_labels},
    }
