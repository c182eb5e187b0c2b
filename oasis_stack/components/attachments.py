"""Where the interfaces of a node are attached: the first one, and those of further NICs."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi


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
    """VPC name; the cluster's own VPC is refused for a device."""
    subnetwork: pulumi.Input[str]
    """Subnet name, in the cluster's region; one subnet serves one parameter set only."""
