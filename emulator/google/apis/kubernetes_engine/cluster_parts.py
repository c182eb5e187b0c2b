"""What GKE makes in a project beside a cluster: firewall rules, the private endpoint, the workload identity pool.

GKE's own firewall rules, and the subnet and address of its control plane's private endpoint, outlive the cluster by
`operations.LATE_SECONDS`: a destroy that does not wait for them fails here as it does on Google Cloud.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

from emulator.google import operations
from emulator.google.apis.kubernetes_engine.places import region_of
from emulator.google.cloud import Cloud, Use
from emulator.google.collection import last

_FIREWALL, _SUBNETWORK, _ADDRESS = "compute/firewall", "compute/subnetwork", "compute/address"


def make(cloud: Cloud, cluster: str, body: Mapping[str, Any]) -> None:
    """Make the parts of a new cluster; `cluster` is its name path."""
    network = body["networkConfig"]["network"]
    for name in _firewalls(cluster):
        firewall = {"name": last(name), "network": network, "direction": "INGRESS", "priority": 1000}
        cloud.put(_FIREWALL, name, firewall, [Use(kind="compute/network", name=network)])
    _reserve_ranges(cloud, cluster, body)
    if block := body.get("privateClusterConfig", {}).get("masterIpv4CidrBlock"):
        _make_private_endpoint(cloud, cluster, network, block)
    if pool := body.get("workloadIdentityConfig", {}).get("workloadPool"):
        cloud.put("iam/workloadIdentityPool", pool, {})


def let_go(cloud: Cloud, cluster: str) -> None:
    """Let the parts of a deleted cluster disappear, late."""
    for kind, name in [*((_FIREWALL, name) for name in _firewalls(cluster)), *_private_endpoint(cluster).items()]:
        if cloud.find(kind, name):
            cloud.expire(kind, name, operations.LATE_SECONDS)


def _reserve_ranges(cloud: Cloud, cluster: str, body: Mapping[str, Any]) -> None:
    """Record in the subnet which internal ranges hold its own range and those of the pods and the Services. The latter
    two were observed (terraform-google-modules/terraform-google-network pull request 693)."""
    policy = body.get("ipAllocationPolicy", {})
    used = {policy.get(f"{part}SecondaryRangeName") for part in ("cluster", "services")} - {None}
    if not used:
        return
    place = f"networkconnectivity.googleapis.com/projects/{cluster.split('/')[1]}/locations/global/internalRanges"

    def reserve(subnet: dict[str, Any]) -> None:
        subnet["reservedInternalRange"] = f"{place}/gke-{last(cluster)}"
        for one in subnet["secondaryIpRanges"]:
            if one["rangeName"] in used:
                one["reservedInternalRange"] = f"{place}/gke-{last(cluster)}-{one['rangeName']}"

    cloud.update(_SUBNETWORK, body["networkConfig"]["subnetwork"], reserve)


def _make_private_endpoint(cloud: Cloud, cluster: str, network: str, block: str) -> None:
    """Make the subnet that keeps the network in use, and the address in it (terraform-google-modules/
    terraform-google-kubernetes-engine issue 2411)."""
    names = _private_endpoint(cluster)
    subnet, address, first = names[_SUBNETWORK], names[_ADDRESS], str(IPv4Network(block)[2])
    body = {"name": last(subnet), "network": network, "ipCidrRange": block, "purpose": "PRIVATE"}
    cloud.put(_SUBNETWORK, subnet, body, [Use(kind="compute/network", name=network)])
    body = {"name": last(address), "subnetwork": subnet, "addressType": "INTERNAL", "address": first}
    cloud.put(_ADDRESS, address, body, [Use(kind=_SUBNETWORK, name=subnet)])


def _firewalls(cluster: str) -> list[str]:
    """The name paths of a cluster's own firewall rules."""
    stem = f"projects/{cluster.split('/')[1]}/global/firewalls/gke-{last(cluster)}"
    return [f"{stem}-{part}" for part in ("all", "vms", "exkubelet")]


def _private_endpoint(cluster: str) -> dict[str, str]:
    _, project, _, location, _, name = cluster.split("/")
    base = f"projects/{project}/regions/{region_of(location)}"
    stem = f"gke-{name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}-pe"
    return {_SUBNETWORK: f"{base}/subnetworks/{stem}-subnet", _ADDRESS: f"{base}/addresses/{stem}"}
