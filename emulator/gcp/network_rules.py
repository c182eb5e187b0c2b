"""What Google's networks refuse. Wording follows Compute Engine's where it is public; the RoCE limits say what the
documentation page "RDMA network profiles" says, since Google's own words for them are not published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, ip_network
from typing import Any

from emulator.gcp.machines import ROCE_ZONES
from emulator.gcp.row import COMPUTE_URL
from emulator.google.cloud import Cloud, CloudObject
from emulator.google.http_errors import RefusedCall

ROCE_SUFFIX = "-vpc-roce"


def admit_network(body: Mapping[str, Any]) -> None:
    """Refuse a network that cannot be made."""
    profile = str(body.get("networkProfile", "")).rsplit("/", 1)[-1]
    if not profile:
        return
    zone = profile.removesuffix(ROCE_SUFFIX)
    if not profile.endswith(ROCE_SUFFIX) or zone not in ROCE_ZONES:
        path = f"projects/{body['project']}/global/networkProfiles/{profile}"
        raise RefusedCall(404, f"The resource '{path}' was not found", "notFound")
    if body.get("autoCreateSubnetworks", True):
        raise RefusedCall(
            400,
            "Invalid value for field 'resource.autoCreateSubnetworks': 'true'. "
            f"Network profile '{profile}' does not allow auto mode subnets.",
            "invalid",
        )


def admit_subnetwork(cloud: Cloud, body: Mapping[str, Any], name: str) -> None:
    """Refuse ranges that overlap, and what a RoCE network does not take."""
    network = _network(cloud, body)
    for label, block in _blocks(body):
        _require_block(label, block)
    for other in cloud.list("compute/subnetwork"):
        if other.name == name or _path(other.body["network"]) != network.name:
            continue
        for _, taken in _blocks(other.body):
            for label, block in _blocks(body):
                if ip_network(block).overlaps(ip_network(taken)):
                    subnetwork, region = other.body["name"], other.body["region"]
                    raise RefusedCall(
                        400,
                        f"Invalid IPCidrRange: {block} conflicts with existing subnetwork '{subnetwork}' "
                        f"in region '{region}'. ({label} overlaps {taken})",
                        "invalid",
                    )
    if body.get("purpose") == "REGIONAL_MANAGED_PROXY":
        refuse_on_roce(cloud, body, "proxy-only subnets")


def refuse_on_roce(cloud: Cloud, body: Mapping[str, Any], what: str) -> None:
    """Refuse an object that a RoCE network does not take; `what` names it in the plural."""
    network = _network(cloud, body)
    if is_roce(network):
        raise RefusedCall(
            400,
            f"Invalid value for field 'resource.network': '{COMPUTE_URL}{network.name}'. "
            f"Network profile '{network.body['networkProfile']}' does not support {what}.",
            "invalid",
        )


def refuse_nat_on_roce(cloud: Cloud, body: Mapping[str, Any]) -> None:
    """Refuse a NAT whose router's network is a RoCE network."""
    router = str(body["router"]).rsplit("/", 1)[-1]
    found = cloud.find("compute/router", f"projects/{body['project']}/regions/{body['region']}/routers/{router}")
    if found is not None:
        refuse_on_roce(cloud, found.body, "Cloud NAT")


def free_address(cloud: Cloud, body: Mapping[str, Any]) -> str:
    """An address for one that leaves the choice to Google: of its subnetwork, or of the block for documentation."""
    taken = {str(other.body["address"]) for other in cloud.list("compute/address")}
    block = IPv4Network("203.0.113.0/24")  # RFC 5737: nobody has these
    if body.get("subnetwork"):
        path = _path(body["subnetwork"])
        collection = f"projects/{body['project']}/regions/{body['region']}/subnetworks/"
        subnetwork = cloud.get("compute/subnetwork", path if "/" in path else collection + path)
        block = IPv4Network(subnetwork.body["ipCidrRange"])
    # "VPC subnets": the first two and the last two addresses of a range are Google's.
    for index in range(block.num_addresses - 3, 1, -1):
        if str(block[index]) not in taken:
            return str(block[index])
    raise RefusedCall(400, f"IP space of {block} is exhausted.", "ipSpaceExhausted")


def is_roce(network: CloudObject) -> bool:
    """True if a network has the RoCE profile."""
    return bool(network.body.get("networkProfile"))


def zone_of_roce(network: CloudObject) -> str:
    """The one zone whose RDMA NICs may attach to a RoCE network."""
    return str(network.body["networkProfile"]).rsplit("/", 1)[-1].removesuffix(ROCE_SUFFIX)


def admit_connection(cloud: Cloud, body: Mapping[str, Any]) -> None:
    """Refuse a private connection without a range that was allocated for it in its own network."""
    network = _network(cloud, body)
    refuse_on_roce(cloud, body, "VPC peering")
    for allocated in body["reservedPeeringRanges"]:
        path = allocated if "/" in allocated else f"projects/{network.body['project']}/global/addresses/{allocated}"
        address = cloud.find("compute/globalAddress", path)
        if address is None or address.body.get("purpose") != "VPC_PEERING":
            raise RefusedCall(
                400,
                f"Requested reserved range {allocated!r} is not an allocated range with purpose VPC_PEERING "
                f"in network {network.name}.",
                "badRequest",
            )


def _network(cloud: Cloud, body: Mapping[str, Any]) -> CloudObject:
    value = _path(body["network"])
    return cloud.get(
        "compute/network", value if "/" in value else f"projects/{body['project']}/global/networks/{value}"
    )


def _path(reference: str) -> str:
    return str(reference).removeprefix(COMPUTE_URL)


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "ipCidrRange" in body:
        yield "ipCidrRange", body["ipCidrRange"]
    for secondary in body.get("secondaryIpRanges", []):
        yield f"secondary range {secondary['rangeName']!r}", secondary["ipCidrRange"]


def _require_block(label: str, block: str) -> None:
    try:
        network = IPv4Network(block)
    except ValueError as problem:
        raise RefusedCall(
            400, f"Invalid value for field 'resource.ipCidrRange': '{block}'. {problem}", "invalid"
        ) from None
    # "VPC subnets": IPv4 subnet ranges, valid sizes.
    if not 4 <= network.prefixlen <= 29:
        raise RefusedCall(
            400, f"Invalid IPCidrRange: {block} ({label}): a subnet range has between /4 and /29", "invalid"
        )
