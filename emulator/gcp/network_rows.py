"""Networks, their parts and the private connection to Google's services: the rows of `tables` for them."""

from __future__ import annotations

from ipaddress import IPv4Network

from emulator.gcp.row import COMPUTE_URL, Edge, ResourceType, attributed_labels, paths
from emulator.protocol.wire import UNKNOWN

_SELF = COMPUTE_URL + "{id}"
_REGIONAL = "projects/{project}/regions/{region}/"
_GLOBAL = "projects/{project}/global/"


def _grew(old: str, new: str) -> bool:
    return IPv4Network(new).supernet_of(IPv4Network(old))


NETWORK_ROWS: dict[str, ResourceType] = {
    "gcp:compute/network:Network": ResourceType(
        source="Terraform Google provider: google_compute_network",
        kind="compute/network",
        api="compute.googleapis.com",
        identity=_GLOBAL + "networks/{name}",
        auto_name=("name", 63),
        replaces=paths("name autoCreateSubnetworks description internalIpv6Range networkProfile params project"),
        defaults={
            "autoCreateSubnetworks": True,
            "mtu": lambda made: 8896 if made.body.get("networkProfile") else 1460,
            "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
            "routingMode": "REGIONAL",
        },
        computed={
            "gatewayIpv4": "",
            "networkId": lambda made: made.digits(19),
            "numericId": lambda made: made.digits(19),
            "selfLink": _SELF,
        },
    ),
    "gcp:compute/subnetwork:Subnetwork": ResourceType(
        source="Terraform Google provider: google_compute_subnetwork",
        kind="compute/subnetwork",
        api="compute.googleapis.com",
        identity=_REGIONAL + "subnetworks/{name}",
        auto_name=("name", 63),
        replaces=paths(
            "name network description externalIpv6Prefix internalIpv6Prefix params region reservedInternalRange "
            "resolveSubnetMask project"
        ),
        # A range can grow in place, and nothing else.
        replaces_if={"ipCidrRange": lambda old, new: new == UNKNOWN or not _grew(old, new)},
        edges=(Edge(path="network", kind="compute/network"),),
        defaults={
            "privateIpGoogleAccess": False,
            "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
        },
        computed={
            "creationTimestamp": "{created}",
            "fingerprint": lambda made: made.digits(11),
            "gatewayAddress": lambda made: str(IPv4Network(made.body["ipCidrRange"])[1]),
            "ipv6CidrRange": "",
            "ipv6GceEndpoint": "",
            "selfLink": _SELF,
            "state": "",
            "subnetworkId": lambda made: int(made.digits(15)),
        },
    ),
    "gcp:compute/router:Router": ResourceType(
        source="Terraform Google provider: google_compute_router",
        kind="compute/router",
        api="compute.googleapis.com",
        identity=_REGIONAL + "routers/{name}",
        auto_name=("name", 63),
        replaces=paths("name encryptedInterconnectRouter nccGateway network params region project"),
        edges=(Edge(path="network", kind="compute/network"),),
        computed={"creationTimestamp": "{created}", "selfLink": _SELF},
    ),
    "gcp:compute/routerNat:RouterNat": ResourceType(
        source="Terraform Google provider: google_compute_router_nat",
        kind="compute/routerNat",
        api="compute.googleapis.com",
        identity="{project}/{region}/{router:last}/{name}",
        auto_name=("name", 63),
        replaces=paths("name router endpointTypes initialNatIps region type project"),
        edges=(
            Edge(path="router", kind="compute/router", relation="part-of"),
            Edge(path="subnetworks.name", kind="compute/subnetwork"),
        ),
        defaults={
            "enableEndpointIndependentMapping": False,
            "endpointTypes": ["ENDPOINT_TYPE_VM"],
            "icmpIdleTimeoutSec": 30,
            "tcpEstablishedIdleTimeoutSec": 1200,
            "tcpTimeWaitTimeoutSec": 120,
            "tcpTransitoryIdleTimeoutSec": 30,
            "type": "PUBLIC",
            "udpIdleTimeoutSec": 30,
        },
    ),
    "gcp:compute/firewall:Firewall": ResourceType(
        source="Terraform Google provider: google_compute_firewall",
        kind="compute/firewall",
        api="compute.googleapis.com",
        identity=_GLOBAL + "firewalls/{name}",
        auto_name=("name", 63),
        replaces=paths("name direction params project"),
        edges=(Edge(path="network", kind="compute/network"),),
        defaults={"direction": "INGRESS", "priority": 1000},
        computed={"creationTimestamp": "{created}", "selfLink": _SELF},
    ),
    "gcp:compute/address:Address": ResourceType(
        source="Terraform Google provider: google_compute_address",
        kind="compute/address",
        api="compute.googleapis.com",
        identity=_REGIONAL + "addresses/{name}",
        auto_name=("name", 63),
        replaces=paths(
            "name address addressType description ipCollection ipVersion ipv6EndpointType network networkTier "
            "prefixLength purpose region subnetwork project"
        ),
        edges=(
            Edge(path="network", kind="compute/network"),
            Edge(path="subnetwork", kind="compute/subnetwork"),
        ),
        defaults={"address": "{address}", "addressType": "EXTERNAL"},
        computed={
            "addressId": lambda made: int(made.digits(15)),
            "creationTimestamp": "{created}",
            "effectiveLabels": attributed_labels,
            "labelFingerprint": lambda made: made.digits(11),
            "pulumiLabels": attributed_labels,
            "selfLink": _SELF,
            "users": lambda made: [],
        },
    ),
    "gcp:compute/globalAddress:GlobalAddress": ResourceType(
        source="Terraform Google provider: google_compute_global_address",
        kind="compute/globalAddress",
        api="compute.googleapis.com",
        identity=_GLOBAL + "addresses/{name}",
        auto_name=("name", 63),
        replaces=paths("name address addressType description ipVersion network prefixLength purpose project"),
        edges=(Edge(path="network", kind="compute/network"),),
        defaults={"addressType": "EXTERNAL", "address": lambda made: f"10.{16 * (int(made.digits(3)) % 15)}.0.0"},
        computed={
            "creationTimestamp": "{created}",
            "effectiveLabels": attributed_labels,
            "labelFingerprint": lambda made: made.digits(11),
            "pulumiLabels": attributed_labels,
            "selfLink": _SELF,
        },
    ),
    "gcp:servicenetworking/connection:Connection": ResourceType(
        source="Terraform Google provider: google_service_networking_connection",
        kind="servicenetworking/connection",
        api="servicenetworking.googleapis.com",
        identity="{network}:{service}",
        replaces=paths("network service"),
        edges=(
            Edge(path="network", kind="compute/network"),
            # An allocated range may go while the connection that took it stays ("Configure private services access").
            Edge(path="reservedPeeringRanges", kind="compute/globalAddress", relation=None),
        ),
        computed={"peering": "servicenetworking-googleapis-com"},
    ),
}
