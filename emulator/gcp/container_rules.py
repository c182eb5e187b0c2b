"""What GKE refuses of clusters and node pools.

Combinations: GoogleCloudPlatform/cluster-toolkit v1.95.0, preconditions of modules/compute/gke-node-pool/main.tf, and
Google Cloud documentation, "About flex-start provisioning mode".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from emulator.gcp.machines import GPU_FAMILIES, GPU_MACHINES
from emulator.gcp.network_rules import is_roce, zone_of_roce
from emulator.gcp.row import COMPUTE_URL, at_path
from emulator.google.cloud import Cloud, CloudObject
from emulator.google.http_errors import RefusedCall

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def admit_cluster(cloud: Cloud, body: Mapping[str, Any], name: str) -> None:
    """Refuse a cluster that GKE would not make."""
    _require_name(body["name"], "cluster")
    # Of one that is there it says nothing: 0 once the pool made with it is gone.
    fresh = cloud.find("container/cluster", name) is None
    if fresh and not (body.get("enableAutopilot") or body.get("initialNodeCount") or body.get("nodePools")):
        raise _bad("Cluster.initial_node_count must be greater than zero.")
    pool = body.get("workloadIdentityConfig", {}).get("workloadPool")
    if pool and pool != f"{body['project']}.svc.id.goog":
        raise _bad(f"Workload pool {pool!r} is invalid; it must be '{body['project']}.svc.id.goog'.")
    if body.get("enableMultiNetworking") and body.get("datapathProvider") != "ADVANCED_DATAPATH":
        raise _bad("Multi-networking requires Dataplane V2 (datapath_provider ADVANCED_DATAPATH).")
    region = _region(body["location"])
    for zone in body.get("nodeLocations", []):
        if _region(zone) != region:
            raise _bad(f"Node location {zone!r} is not in the cluster's region {region!r}.")
    if body.get("subnetwork"):
        _require_ranges(_subnetwork(cloud, body["subnetwork"], body["project"], region), body)


def admit_pool(cloud: Cloud, body: Mapping[str, Any], name: str) -> None:
    """Refuse a node pool that GKE would not make."""
    _require_name(body["name"], "node pool")
    node = body.get("nodeConfig", {})
    cluster = cloud.get("container/cluster", name.rsplit("/nodePools/", 1)[0])
    _require_streaming_role(cloud, node, body)
    _require_machine(node, body)
    _require_one_way_to_buy(node, body)
    if node.get("flexStart"):
        _require_ordinary_pool(cloud, cluster)
    channel = cluster.body.get("releaseChannel", {}).get("channel", "UNSPECIFIED")
    if channel != "UNSPECIFIED" and not body.get("management", {}).get("autoUpgrade", True):
        raise _bad(f"Auto_upgrade must be true when release_channel {channel} is set.")
    _require_networks(cloud, cluster, node, body)


def _require_streaming_role(cloud: Cloud, node: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Refuse at once what Google takes, and what fails later: pods that stream their image on nodes of such an account
    (GKE documentation, "Use Image streaming", requirements)."""
    account, role = node.get("serviceAccount", "default"), "roles/serviceusage.serviceUsageConsumer"
    if account == "default" or not node.get("gcfsConfig", {}).get("enabled"):
        return
    grants = cloud.list("cloudresourcemanager/iamMember", f"{body['project']}/")
    if not any(grant.body["role"] == role and grant.body["member"].endswith(f":{account}") for grant in grants):
        raise _bad(f"Image streaming needs {role} for {account} on project {body['project']!r}.")


def _require_machine(node: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    machine_type = str(node.get("machineType", "e2-medium"))
    zones = body.get("nodeLocations") or [body["location"]]
    machine = GPU_MACHINES.get(machine_type)
    given = [(item["type"], item["count"]) for item in node.get("guestAccelerators", [])]
    if machine is None:
        if machine_type.startswith(GPU_FAMILIES):
            raise _bad(f"Invalid machine type {machine_type!r}: the emulator knows {', '.join(GPU_MACHINES)}.")
        return
    for zone in zones:
        if zone not in machine.zones:
            path = f"projects/{body['project']}/zones/{zone}/machineTypes/{machine_type}"
            raise _bad(f"Machine type with name '{machine_type}' does not exist in zone '{zone}' ({path}).")
    if given and given != [(machine.accelerator, machine.gpus)]:
        raise _bad(
            f"Accelerator type/count {given} is not compatible with machine type {machine_type}: "
            f"it has {machine.gpus} x {machine.accelerator}."
        )
    disk = str(node.get("diskType", "pd-balanced"))
    if machine.hyperdisk_only and not disk.startswith("hyperdisk"):
        raise _bad(f"[{disk}] features are not compatible for creating instance of machine type {machine_type}.")


def _require_one_way_to_buy(node: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    affinity = node.get("reservationAffinity", {}).get("consumeReservationType", "UNSPECIFIED")
    scaling = body.get("autoscaling")
    if node.get("flexStart"):
        if node.get("spot"):
            raise _bad("Flex-start node pools cannot use Spot VMs.")
        if body.get("management", {}).get("autoRepair", True):
            raise _bad("Auto-repair must be disabled for flex-start node pools.")
        if affinity != "NO_RESERVATION":
            raise _bad("Flex-start node pools require reservation affinity NO_RESERVATION.")
        if not scaling or body.get("nodeCount"):
            raise _bad("Flex-start node pools require autoscaling and cannot have a fixed number of nodes.")
    if node.get("spot") and affinity in ("SPECIFIC_RESERVATION", "ANY_RESERVATION"):
        raise _bad("Spot VMs cannot consume a reservation.")
    if scaling and {"minNodeCount", "maxNodeCount"} & scaling.keys() and _totals(scaling):
        raise _bad("Autoscaling limits are either per zone or in total for the pool, not both.")
    if body.get("placementPolicy", {}).get("type") == "COMPACT" and len(body.get("nodeLocations", [])) > 1:
        raise _bad("Compact placement is only supported for node pools in a single zone.")


def _require_ordinary_pool(cloud: Cloud, cluster: CloudObject) -> None:
    if not cluster.body.get("removeDefaultNodePool"):
        return
    pools = cloud.list("container/nodePool", f"{cluster.name}/nodePools/")
    if all(pool.body.get("nodeConfig", {}).get("flexStart") for pool in pools):
        raise _bad("A cluster must have at least one node pool that does not use flex-start.")


def _totals(scaling: Mapping[str, Any]) -> bool:
    return bool({"totalMinNodeCount", "totalMaxNodeCount"} & scaling.keys())


def _require_networks(cloud: Cloud, cluster: CloudObject, node: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    pairs = body.get("networkConfig", {}).get("additionalNodeNetworkConfigs", [])
    if pairs and not cluster.body.get("enableMultiNetworking"):
        raise _bad("Additional node networks require a cluster with multi-networking enabled.")
    machine = GPU_MACHINES.get(str(node.get("machineType")))
    rdma = 0
    for pair in pairs:
        network = cloud.get("compute/network", _full(pair["network"], body["project"], "global/networks"))
        region = _region(str(body["location"]))
        subnetwork = _subnetwork(cloud, pair["subnetwork"], body["project"], region)
        if _full(subnetwork.body["network"], body["project"], "global/networks") != network.name:
            raise _bad(f"Subnetwork {subnetwork.body['name']!r} is not in network {network.body['name']!r}.")
        if network.name == _full(cluster.body.get("network", ""), body["project"], "global/networks"):
            raise _bad("Additional node networks cannot use the cluster's own network.")
        if is_roce(network):
            rdma += 1
            zones = body.get("nodeLocations") or [body["location"]]
            if any(zone != zone_of_roce(network) for zone in zones):
                raise _bad(f"Network {network.body['name']!r} takes nodes of zone {zone_of_roce(network)} alone.")
    if machine and rdma > machine.rdma_nics:
        raise _bad(f"Machine type {node['machineType']} has {machine.rdma_nics} RDMA NICs; {rdma} networks need one.")


def _require_ranges(subnetwork: CloudObject, body: Mapping[str, Any]) -> None:
    ranges = {item["rangeName"] for item in subnetwork.body.get("secondaryIpRanges", [])}
    for path, word in (("clusterSecondaryRangeName", "Pod"), ("servicesSecondaryRangeName", "Services")):
        for named in at_path(body, f"ipAllocationPolicy.{path}"):
            if named not in ranges:
                raise _bad(f"{word} secondary range {named!r} does not exist in network, subnetwork {subnetwork.name}.")


def _subnetwork(cloud: Cloud, reference: str, project: str, region: str) -> CloudObject:
    return cloud.get("compute/subnetwork", _full(reference, project, f"regions/{region}/subnetworks"))


def _full(reference: str, project: str, collection: str) -> str:
    path = reference.removeprefix(COMPUTE_URL)
    return path if "/" in path else f"projects/{project}/{collection}/{path}"


def _region(location: str) -> str:
    return location.rsplit("-", 1)[0] if location.count("-") == 2 else location


def _require_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise _bad(
            f"Invalid {what} name {name!r}: lower-case letters, digits and dashes, at most 40, starting with a letter "
            "and not ending with a dash."
        )


def _bad(message: str) -> RefusedCall:
    return RefusedCall(400, message, "badRequest")
