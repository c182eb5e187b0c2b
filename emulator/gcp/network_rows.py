"""Rows of `tables` for networks, their parts and the private connection to Google's services."""

from __future__ import annotations

from ipaddress import IPv4Network

from emulator.gcp.resources.compute import Address, Firewall, Network, Router, RouterNat, Subnetwork
from emulator.gcp.resources.servicenetworking import Connection
from emulator.gcp.row import ResourceType, paths
from emulator.protocol.wire import UNKNOWN

_GLOBAL = "projects/{project}/global"
_REGIONAL = "projects/{project}/regions/{region}"
_API = "compute/beta/"
"""The version that pulumi-gcp calls."""

_IN_NETWORK = {"network": f"{_GLOBAL}/networks"}
_NAT = {
    "enableEndpointIndependentMapping": False,
    "icmpIdleTimeoutSec": 30,
    "tcpEstablishedIdleTimeoutSec": 1200,
    "tcpTimeWaitTimeoutSec": 120,
    "tcpTransitoryIdleTimeoutSec": 30,
    "type": "PUBLIC",
    "udpIdleTimeoutSec": 30,
}


def _grew(old: str, new: str) -> bool:
    return IPv4Network(new).supernet_of(IPv4Network(old))


NETWORK_ROWS: dict[str, ResourceType] = {
    "gcp:compute/network:Network": ResourceType(
        # Terraform Google provider: google_compute_network
        resource=Network(
            parent=f"{_API}{_GLOBAL}/networks",
            identity=f"{_GLOBAL}/networks/{{name}}",
            references={"networkProfile": f"{_GLOBAL}/networkProfiles"},
            renamed={
                "bgpAlwaysCompareMed": "routingConfig.bgpAlwaysCompareMed",
                "bgpBestPathSelectionMode": "routingConfig.bgpBestPathSelectionMode",
                "bgpInterRegionCost": "routingConfig.bgpInterRegionCost",
                "gatewayIpv4": "gatewayIPv4",
                "routingMode": "routingConfig.routingMode",
            },
            unsent=frozenset({"deleteBgpAlwaysCompareMed", "deleteDefaultRoutesOnCreate"}),
            computed={"gatewayIpv4": ""},
        ),
        auto_name=("name", 63),
        replaces=paths("name autoCreateSubnetworks description internalIpv6Range networkProfile params project"),
        defaults=paths(
            "autoCreateSubnetworks bgpBestPathSelectionMode mtu networkFirewallPolicyEnforcementOrder routingMode"
        ),
    ),
    "gcp:compute/subnetwork:Subnetwork": ResourceType(
        # Terraform Google provider: google_compute_subnetwork
        resource=Subnetwork(
            parent=f"{_API}{_REGIONAL}/subnetworks",
            identity=f"{_REGIONAL}/subnetworks/{{name}}",
            references=_IN_NETWORK,
            unsent=frozenset({"sendSecondaryIpRangeIfEmpty"}),
            computed={"ipv6CidrRange": "", "ipv6GceEndpoint": "", "state": ""},
            numbers=("subnetworkId",),
        ),
        auto_name=("name", 63),
        replaces=paths(
            "name network description externalIpv6Prefix internalIpv6Prefix params region reservedInternalRange "
            "resolveSubnetMask project"
        ),
        # In place, a range can only grow.
        replaces_if={"ipCidrRange": lambda old, new: new == UNKNOWN or not _grew(old, new)},
        defaults=paths("allowSubnetCidrRoutesOverlap privateIpGoogleAccess privateIpv6GoogleAccess purpose stackType"),
        not_computed=paths("reservedInternalRange secondaryIpRanges.reservedInternalRange"),
    ),
    "gcp:compute/router:Router": ResourceType(
        # Terraform Google provider: google_compute_router
        resource=Router(
            parent=f"{_API}{_REGIONAL}/routers",
            identity=f"{_REGIONAL}/routers/{{name}}",
            references=_IN_NETWORK,
        ),
        auto_name=("name", 63),
        replaces=paths("name encryptedInterconnectRouter nccGateway network params region project"),
    ),
    "gcp:compute/routerNat:RouterNat": ResourceType(
        # Terraform Google provider: google_compute_router_nat
        resource=RouterNat(
            parent=f"{_API}{_REGIONAL}/routers/{{router}}",
            identity="{project}/{region}/{router:last}/{name}",
            computed=_NAT,
        ),
        auto_name=("name", 63),
        replaces=paths("name router endpointTypes initialNatIps region type project"),
        defaults=frozenset({*_NAT, "endpointTypes"}),
    ),
    "gcp:compute/firewall:Firewall": ResourceType(
        # Terraform Google provider: google_compute_firewall
        resource=Firewall(
            parent=f"{_API}{_GLOBAL}/firewalls",
            identity=f"{_GLOBAL}/firewalls/{{name}}",
            references=_IN_NETWORK,
        ),
        auto_name=("name", 63),
        replaces=paths("name direction params project"),
        defaults=paths("direction disabled priority"),
    ),
    "gcp:compute/address:Address": ResourceType(
        # Terraform Google provider: google_compute_address
        resource=Address(
            parent=f"{_API}{_REGIONAL}/addresses",
            identity=f"{_REGIONAL}/addresses/{{name}}",
            references={**_IN_NETWORK, "subnetwork": f"{_REGIONAL}/subnetworks"},
            labels="labels",
            computed={"users": []},
            numbers=("addressId",),
        ),
        auto_name=("name", 63),
        replaces=paths(
            "name address addressType description ipCollection ipVersion ipv6EndpointType network networkTier "
            "prefixLength purpose region subnetwork project"
        ),
        defaults=paths("address addressType networkTier purpose"),
    ),
    "gcp:compute/globalAddress:GlobalAddress": ResourceType(
        # Terraform Google provider: google_compute_global_address
        resource=Address(
            parent=f"{_API}{_GLOBAL}/addresses",
            identity=f"{_GLOBAL}/addresses/{{name}}",
            references=_IN_NETWORK,
            labels="labels",
        ),
        auto_name=("name", 63),
        replaces=paths("name address addressType description ipVersion network prefixLength purpose project"),
        defaults=paths("address addressType"),
    ),
    "gcp:servicenetworking/connection:Connection": ResourceType(
        # Terraform Google provider: google_service_networking_connection
        resource=Connection(),
        replaces=paths("network service"),
    ),
}
