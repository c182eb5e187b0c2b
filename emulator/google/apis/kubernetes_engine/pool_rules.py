"""Rules by which GKE refuses node pools.

Combinations: GoogleCloudPlatform/cluster-toolkit v1.95.0, preconditions of modules/compute/gke-node-pool/main.tf, and
Google Cloud documentation, "About flex-start provisioning mode".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.google import policies
from emulator.google.apis.kubernetes_engine.places import bad, full, region_of, require_name
from emulator.google.cloud import Cloud, CloudObject
from emulator.google.errors import RefusedCall
from emulator.google.machines import GPU_FAMILIES, GPU_MACHINES, roce_zone

POOL, CLUSTER = "container/nodePool", "container/cluster"


def admit_pool(cloud: Cloud, body: Mapping[str, Any], name: str, before: CloudObject | None) -> None:
    """Refuse a node pool that GKE would not create or update."""
    require_name(body["name"], "node pool")
    node = body["config"]
    cluster = cloud.get(CLUSTER, name.partition("/nodePools/")[0])
    project = name.split("/")[1]
    _require_streaming_role(cloud, node, project)
    _require_machine(node, body["locations"])
    _require_one_way_to_buy(node, body)
    if node.get("flexStart") and before is None:
        # Later the number is GKE's own count, not the requested one.
        if body.get("initialNodeCount"):
            raise bad("Flex-start node pools require autoscaling and cannot have a fixed number of nodes.")
        _require_ordinary_pool(cloud, cluster)
    channel = cluster.body.get("releaseChannel", {}).get("channel", "UNSPECIFIED")
    if channel != "UNSPECIFIED" and not body["management"].get("autoUpgrade"):
        raise bad(f"Auto_upgrade cannot be false when release_channel {channel} is set.")
    if before is None:
        _require_reservation(cloud, body, project)
    _require_networks(cloud, cluster, body)


def _require_streaming_role(cloud: Cloud, node: Mapping[str, Any], project: str) -> None:
    """Refuse at once what Google accepts and what fails only later: pods that stream their image on nodes of such an
    account (GKE documentation, "Use Image streaming", requirements)."""
    account, role = node.get("serviceAccount", "default"), "roles/serviceusage.serviceUsageConsumer"
    if account == "default" or not node.get("gcfsConfig", {}).get("enabled"):
        return
    resource = policies.full_name("cloudresourcemanager.googleapis.com", f"projects/{project}")
    if role not in policies.roles(cloud, resource, f"serviceAccount:{account}"):
        raise bad(f"Image streaming needs {role} for {account} on project {project!r}.")


def _require_machine(node: Mapping[str, Any], zones: list[str]) -> None:
    machine_type = node["machineType"]
    machine = GPU_MACHINES.get(machine_type)
    if machine is None:
        if machine_type.startswith(GPU_FAMILIES):
            raise bad(f"Invalid machine type {machine_type!r}: the emulator knows {', '.join(GPU_MACHINES)}.")
        return
    for zone in zones:
        if zone not in machine.zones:
            raise bad(f'Invalid machine type "{machine_type}" in zone "{zone}": GCE_NOT_FOUND')
    given = [(item["acceleratorType"], int(item["acceleratorCount"])) for item in node.get("accelerators", [])]
    if given and given != [(machine.accelerator, machine.gpus)]:
        raise bad(
            f"Accelerator type/count {given} is not compatible with machine type {machine_type}: "
            f"it has {machine.gpus} x {machine.accelerator}."
        )
    disk = node["diskType"]
    if machine.hyperdisk_only and not disk.startswith("hyperdisk"):
        raise bad(f"[{disk}, {machine_type}] features are not compatible for creating instance.")


def _require_one_way_to_buy(node: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    affinity = node.get("reservationAffinity", {}).get("consumeReservationType", "UNSPECIFIED")
    scaling, placement = body.get("autoscaling", {}), body.get("placementPolicy", {})
    if node.get("flexStart"):
        if node.get("spot"):
            raise bad("Flex-start node pools cannot use Spot VMs.")
        if body["management"].get("autoRepair"):
            raise bad("Auto-repair must be disabled for flex-start node pools.")
        if affinity != "NO_RESERVATION":
            raise bad("Flex-start node pools require reservation affinity NO_RESERVATION.")
        if not scaling.get("enabled"):
            raise bad("Flex-start node pools require autoscaling and cannot have a fixed number of nodes.")
    if node.get("spot") and affinity in ("SPECIFIC_RESERVATION", "ANY_RESERVATION"):
        raise bad("Spot VMs cannot consume a reservation.")
    if body.get("queuedProvisioning", {}).get("enabled"):
        if node.get("spot") or affinity != "NO_RESERVATION":
            raise bad("Queued provisioning cannot use Spot VMs or a reservation.")
        if any(scaling.get(key) for key in ("minNodeCount", "totalMinNodeCount")):
            raise bad("Queued provisioning requires a minimum of 0 nodes.")
        if placement.get("type") == "COMPACT":
            raise bad("Queued provisioning does not support compact placement.")
    if node.get("flexStart") and placement.get("type") == "COMPACT" and not placement.get("policyName"):
        raise bad("Flex-start node pools support compact placement only by a workload policy.")
    per_zone, in_total = (any(scaling.get(key) for key in keys) for keys in _LIMITS)
    if per_zone and in_total:
        raise bad("Autoscaling limits are either per zone or in total for the pool, not both.")
    if placement.get("type") == "COMPACT" and len(body["locations"]) > 1:
        raise bad("Compact placement is only supported for node pools in a single zone.")


def _require_reservation(cloud: Cloud, body: Mapping[str, Any], project: str) -> None:
    """Refuse a missing reservation, or a missing block of one (GoogleCloudPlatform/cluster-toolkit pull request
    5043)."""
    for given in body["config"].get("reservationAffinity", {}).get("values", []):
        for zone in body["locations"]:
            if cloud.find(*reservation_of(given, project, zone)) is None:
                where = f'for node pool "{body["name"]}" at zone "{zone}"'
                message = f'Google Compute Engine: reservation "{given}" not found {where}.'
                raise RefusedCall(404, message, "notFound")


_LIMITS = (("minNodeCount", "maxNodeCount"), ("totalMinNodeCount", "totalMaxNodeCount"))


def _require_ordinary_pool(cloud: Cloud, cluster: CloudObject) -> None:
    if all(pool.body["config"].get("flexStart") for pool in cloud.list(POOL, f"{cluster.name}/nodePools/")):
        raise bad("A cluster must have at least one node pool that does not use flex-start.")


def _require_networks(cloud: Cloud, cluster: CloudObject, body: Mapping[str, Any]) -> None:
    pairs = body.get("networkConfig", {}).get("additionalNodeNetworkConfigs", [])
    if pairs and not cluster.body["networkConfig"].get("enableMultiNetworking"):
        raise bad("Additional node networks require a cluster with multi-networking enabled.")
    machine = GPU_MACHINES.get(body["config"]["machineType"])
    rdma = 0
    for network_name, subnetwork_name in pairs_of(cluster.name, body):
        network, subnetwork = (
            cloud.get("compute/network", network_name),
            cloud.get("compute/subnetwork", subnetwork_name),
        )
        project, label = cluster.name.split("/")[1], network.body["name"]
        if full(subnetwork.body["network"], project, "global/networks") != network.name:
            raise bad(f"Subnetwork {subnetwork.body['name']!r} is not in network {label!r}.")
        if network.name == cluster.body["networkConfig"]["network"]:
            raise bad("Additional node networks cannot use the cluster's own network.")
        if zone := roce_zone(network.body.get("networkProfile", "")):
            rdma += 1
            if any(other != zone for other in body["locations"]):
                raise bad(f"Network {label!r} takes nodes of zone {zone} alone.")
    if machine and rdma > machine.rdma_nics:
        kind = body["config"]["machineType"]
        raise bad(f"Machine type {kind} has {machine.rdma_nics} RDMA NICs; {rdma} networks need one.")


def reservation_of(given: str, project: str, zone: str) -> tuple[str, str]:
    """Kind and name path of the reservation, or the block of one, that a pool of the project names. The name may be
    short, as for GKE's autoscaler (GoogleCloudPlatform/cluster-autoscaler, 2026, package gceclient, ReservationRef)."""
    whole = given if given.startswith("projects/") else f"projects/{project}/reservations/{given}"
    name = whole.replace("/reservations/", f"/zones/{zone}/reservations/")
    return f"compute/{name.split('/')[-2].removesuffix('s')}", name


def pairs_of(cluster: str, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name paths of the networks and subnetworks of a pool's additional NICs; `cluster` is its cluster's name path."""
    project, region = cluster.split("/")[1], region_of(cluster.split("/")[3])
    return [
        (
            full(pair["network"], project, "global/networks"),
            full(pair["subnetwork"], project, f"regions/{region}/subnetworks"),
        )
        for pair in body.get("networkConfig", {}).get("additionalNodeNetworkConfigs", [])
    ]
