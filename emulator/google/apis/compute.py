"""Compute Engine: networks, and what is in them.

Messages follow Compute Engine's where these are public. For the limits of RoCE networks they follow the documentation
page "RDMA network profiles", since Google's own messages are not published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, ip_network
from typing import Any, ClassVar

from emulator.google import limits
from emulator.google.apis.compute_collection import (
    ComputeCollection,
    fingerprint,
    link,
    malformed,
    referred,
    require_fingerprint,
)
from emulator.google.apis.compute_engine.advice import Advice
from emulator.google.cloud import CloudObject, Use
from emulator.google.collection import Body, Call, last, name_path
from emulator.google.errors import InUseError, RefusedCall, in_googles_words
from emulator.google.machines import GPU_MACHINES, ROCE_ZONES, UnknownMachineError, machine_size, roce_zone

_IN_NETWORK: Mapping[str, str] = {"network": "compute/network"}

_ROUTING = {"bgpBestPathSelectionMode": "LEGACY", "routingMode": "REGIONAL"}
"""How a network routes by default ("Learn about Cloud Router", "VPC networks")."""

_UNUSED = IPv4Network("203.0.113.0/24")
"""External addresses that nobody has (RFC 5737)."""


class Networks(ComputeCollection):
    """`projects/p/global/networks/n`."""

    kind = "compute/network"
    refers: ClassVar[Mapping[str, str]] = {"networkProfile": ""}

    def stored(self, call: Call, body: Body) -> Body:
        if body.get("networkProfile", "").startswith("global/"):
            # Unlike the other references (GoogleCloudPlatform/cloud-image-tests pull request 537).
            raise malformed("networkProfile", body["networkProfile"])
        asked = body.get("routingConfig", {})
        # An instruction, which is not stored.
        routing = {key: value for key, value in asked.items() if key != "deleteBgpAlwaysCompareMed"}
        return super().stored(call, {**body, "routingConfig": {**_ROUTING, **routing}})

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        super().admit(call, name, body, before)
        profile = last(body.get("networkProfile", ""))
        if not profile:
            return
        if roce_zone(profile) not in ROCE_ZONES:
            path = f"projects/{call.project}/global/networkProfiles/{profile}"
            raise RefusedCall(404, f"The resource '{path}' was not found", "notFound")
        if body.get("autoCreateSubnetworks"):
            raise _invalid(
                "Invalid value for field 'resource.autoCreateSubnetworks': 'true'. "
                f"Network profile '{profile}' does not allow auto mode subnets."
            )

    def filled(self, call: Call, name: str, body: Body) -> Body:
        return {
            "mtu": 8896 if body.get("networkProfile") else 1460,
            "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        }

    def do_delete(self, call: Call) -> Body:
        """Delete a network. Unlike for its parts, the refusal for a network in use comes with the operation
        (genevieve/leftovers issue 6)."""
        try:
            return super().do_delete(call)
        except InUseError as error:
            refusal = in_googles_words(error)
            code = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
            return self.operation(call, self.found(call), {"code": code, "message": refusal.message})

    def shown(self, call: Call, found: CloudObject) -> Body:
        users = call.cloud.users(self.kind, found.name)
        subnets = [link(call, name) for kind, name in users if kind == Subnetworks.kind]
        return {**super().shown(call, found), **({"subnetworks": subnets} if subnets else {})}


class Subnetworks(ComputeCollection):
    """`projects/p/regions/r/subnetworks/s`."""

    kind = "compute/subnetwork"
    refers = _IN_NETWORK
    required = ("network", "ipCidrRange")

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        super().admit(call, name, body, before)
        for label, block in _blocks(body):
            _require_block(label, block)
        for other in call.cloud.list(self.kind):
            if other.name != name and name_path(other.body["network"]) == body["network"]:
                _refuse_overlap(body, other)
        if body.get("purpose") == "REGIONAL_MANAGED_PROXY":
            refuse_on_roce(call, body["network"], "proxy-only subnets")

    def filled(self, call: Call, name: str, body: Body) -> Body:
        return {
            "allowSubnetCidrRoutesOverlap": False,
            "privateIpGoogleAccess": False,
            "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
        }

    def shown(self, call: Call, found: CloudObject) -> Body:
        blocks = [block for _, block in _blocks(found.body)]
        gateway = {"gatewayAddress": str(IPv4Network(blocks[0])[1])} if blocks else {}
        return {**super().shown(call, found), **gateway, "fingerprint": fingerprint(found.body)}

    def do_patch(self, call: Call) -> Body:
        require_fingerprint(fingerprint(self.found(call).body), call.body.get("fingerprint"), "Invalid fingerprint.")
        return super().do_patch(call)

    def do_expand_ip_cidr_range(self, call: Call) -> Body:
        found, block = self.found(call), call.body.get("ipCidrRange", "")
        _require_block("ipCidrRange", block)
        if not IPv4Network(block).supernet_of(IPv4Network(found.body["ipCidrRange"])):
            held = found.body["ipCidrRange"]
            raise _invalid(f"Invalid value for field 'ipCidrRange': '{block}'. It must hold the range {held}.")
        return self.change(call, found, {**found.body, "ipCidrRange": block})

    def do_set_private_ip_google_access(self, call: Call) -> Body:
        found = self.found(call)
        access = call.body.get("privateIpGoogleAccess", False)
        return self.change(call, found, {**found.body, "privateIpGoogleAccess": access})


class Routers(ComputeCollection):
    """`projects/p/regions/r/routers/r`; each holds its NATs."""

    kind = "compute/router"
    refers = _IN_NETWORK

    def stored(self, call: Call, body: Body) -> Body:
        nats = [_stored_nat(call, nat) for nat in body.get("nats", [])]
        return super().stored(call, {**body, "nats": nats})

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        super().admit(call, name, body, before)
        refuse_on_roce(call, body["network"], "Cloud Router")

    def uses(self, call: Call, body: Mapping[str, Any]) -> Iterable[Use]:
        yield from super().uses(call, body)
        for nat in body.get("nats", []):
            for subnetwork in nat.get("subnetworks", []):
                yield Use(kind=Subnetworks.kind, name=subnetwork["name"])
            for address in (*nat.get("natIps", []), *nat.get("drainNatIps", [])):
                yield Use(kind=Addresses.kind, name=address)


class Firewalls(ComputeCollection):
    """`projects/p/global/firewalls/f`."""

    kind = "compute/firewall"
    refers = _IN_NETWORK
    required = ("network",)

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        super().admit(call, name, body, before)
        refuse_on_roce(call, body["network"], "VPC firewall rules")

    def filled(self, call: Call, name: str, body: Body) -> Body:
        return {"direction": "INGRESS", "disabled": False, "logConfig": {"enable": False}, "priority": 1000}


class Addresses(ComputeCollection):
    """`projects/p/regions/r/addresses/a`."""

    kind = "compute/address"
    refers: ClassVar[Mapping[str, str]] = {"network": "compute/network", "subnetwork": "compute/subnetwork"}

    def everywhere(self, call: Call) -> list[CloudObject]:
        return [one for kind in _ADDRESSES for one in call.cloud.list(kind, f"projects/{call.project}/")]

    def filled(self, call: Call, name: str, body: Body) -> Body:
        external = body.get("addressType", "EXTERNAL") == "EXTERNAL" and "subnetwork" not in body
        own = {"addressType": "EXTERNAL"} if external else {"addressType": "INTERNAL", "purpose": "GCE_ENDPOINT"}
        return {"address": self.free(call, name, body), "networkTier": "PREMIUM", **own}

    def free(self, call: Call, name: str, body: Body) -> str:
        """An unused address, for a request that leaves the choice to Google: in its subnetwork, or external."""
        block = _UNUSED
        if of := body.get("subnetwork", ""):
            block = IPv4Network(call.cloud.get(Subnetworks.kind, body["subnetwork"]).body["ipCidrRange"])
        taken = {other.body.get("address") for kind in _ADDRESSES for other in call.cloud.list(kind)}
        # "VPC subnets": the first two and the last two addresses of a range are Google's.
        for index in range(block.num_addresses - 3, 1, -1):
            if str(block[index]) not in taken:
                return str(block[index])
        raise _exhausted(of or str(block))

    def shown(self, call: Call, found: CloudObject) -> Body:
        users = [link(call, name) for _, name in call.cloud.users(self.kind, found.name)]
        use: Body = {"status": "IN_USE", "users": users} if users else {"status": "RESERVED"}
        labels = fingerprint(found.body.get("labels", {}))
        return {**super().shown(call, found), **use, "labelFingerprint": labels}

    def do_set_labels(self, call: Call) -> Body:
        found = self.found(call)
        now, given = fingerprint(found.body.get("labels", {})), call.body.get("labelFingerprint")
        require_fingerprint(now, given, "Labels fingerprint either invalid or resource labels have changed")
        return self.change(call, found, {**found.body, "labels": call.body.get("labels", {})})


class GlobalAddresses(Addresses):
    """`projects/p/global/addresses/a`: external addresses, and ranges allocated to Google's services."""

    kind = "compute/globalAddress"
    noun = "address"

    def filled(self, call: Call, name: str, body: Body) -> Body:
        return {"addressType": "EXTERNAL", "address": self.free(call, name, body)}

    def free(self, call: Call, name: str, body: Body) -> str:
        if body.get("addressType", "EXTERNAL") == "EXTERNAL":
            return super().free(call, name, body)
        wanted = int(body.get("prefixLength", 16))
        others = call.cloud.list(Subnetworks.kind) + call.cloud.list(self.kind)
        taken = [IPv4Network(block) for other in others for _, block in _blocks(other.body)]
        # Allocated ranges are of RFC 1918 ("Configure private services access").
        for block in IPv4Network("10.0.0.0/8").subnets(new_prefix=max(wanted, 8)):
            if not any(block.overlaps(other) for other in taken):
                return str(block[0])
        raise _exhausted("10.0.0.0/8")


class ForwardingRules(ComputeCollection):
    """`projects/p/regions/r/forwardingRules/f`."""

    kind = "compute/forwardingRule"
    refers = _IN_NETWORK


class NetworkEndpointGroups(ComputeCollection):
    """`projects/p/zones/z/networkEndpointGroups/g`."""

    kind = "compute/networkEndpointGroup"
    refers = _IN_NETWORK


class Regions(ComputeCollection):
    """`projects/p/regions/r`: a region's name and quotas."""

    kind = "compute/region"

    def do_get(self, call: Call) -> Body:
        name = last(call.name)
        return {"kind": "compute#region", "name": name, "quotas": limits.shown(call.cloud, call.project, name)}


class Projects(ComputeCollection):
    """`projects/p`: its name and quotas."""

    kind = "compute/project"

    def do_get(self, call: Call) -> Body:
        return {"kind": "compute#project", "name": call.project, "quotas": limits.shown(call.cloud, call.project)}


class MachineTypes(ComputeCollection):
    """`projects/p/zones/z/machineTypes/m`: its size."""

    kind = "compute/machineType"

    def do_get(self, call: Call) -> Body:
        zone, name = call.name.split("/")[3], last(call.name)
        gpus = GPU_MACHINES.get(name)
        if (gpus and zone not in gpus.zones) or f"{zone}/{name}" in limits.read(call.cloud).absent:
            raise _not_found(call)
        try:
            vcpus, memory_gb = machine_size(name)
        except UnknownMachineError:
            raise _not_found(call) from None
        return {"kind": "compute#machineType", "name": name, "guestCpus": vcpus, "memoryMb": memory_gb * 1024}


class NetworkProfiles(ComputeCollection):
    """`projects/p/global/networkProfiles/n`: where it is."""

    kind = "compute/networkProfile"

    def do_get(self, call: Call) -> Body:
        name = last(call.name)
        zone = roce_zone(name)
        if zone not in ROCE_ZONES or name in limits.read(call.cloud).absent:
            raise _not_found(call)
        return {"kind": "compute#networkProfile", "name": name, "location": {"scope": "ZONE", "name": zone}}


class Reservations(ComputeCollection):
    """`projects/p/zones/z/reservations/r`: holds only what it was made with."""

    kind = "compute/reservation"


class ReservationBlocks(ComputeCollection):
    """`.../reservations/r/reservationBlocks/b`, which a test has put there; an answer wraps it in an envelope."""

    kind = "compute/reservationBlock"

    def do_get(self, call: Call) -> Body:
        return {"resource": self.shown(call, call.cloud.get(self.kind, call.name))}


class ReservationSubBlocks(ReservationBlocks):
    """`.../reservationBlocks/b/reservationSubBlocks/s`, likewise."""

    kind = "compute/reservationSubBlock"


_ADDRESSES = (Addresses.kind, GlobalAddresses.kind)

COLLECTIONS = {
    "compute.addresses": Addresses(),
    "compute.advice": Advice(),
    "compute.firewalls": Firewalls(),
    "compute.forwardingRules": ForwardingRules(),
    "compute.globalAddresses": GlobalAddresses(),
    "compute.machineTypes": MachineTypes(),
    "compute.networkEndpointGroups": NetworkEndpointGroups(),
    "compute.networkProfiles": NetworkProfiles(),
    "compute.networks": Networks(),
    "compute.projects": Projects(),
    "compute.regions": Regions(),
    "compute.reservationBlocks": ReservationBlocks(),
    "compute.reservationSubBlocks": ReservationSubBlocks(),
    "compute.reservations": Reservations(),
    "compute.routers": Routers(),
    "compute.subnetworks": Subnetworks(),
}


def refuse_on_roce(call: Call, network: str, what: str) -> None:
    """Refuse an object that a RoCE network does not support; `what` names it in the plural. Raises RefusedCall."""
    found = call.cloud.get(Networks.kind, network)
    if profile := found.body.get("networkProfile"):
        raise _invalid(
            f"Invalid value for field 'resource.network': '{link(call, network)}'. "
            f"Network profile '{profile}' does not support {what}."
        )


def _stored_nat(call: Call, nat: Mapping[str, Any]) -> Body:
    """A NAT as it is stored, with what Google fills in (Terraform Google provider, google_compute_router_nat)."""
    lists = {
        field: [referred(call, f"nats.{field}", address) for address in nat[field]]
        for field in ("natIps", "drainNatIps")
        if field in nat
    }
    subnetworks = [
        {**one, "name": referred(call, "nats.subnetworks.name", one["name"])} for one in nat.get("subnetworks", [])
    ]
    return {
        "enableEndpointIndependentMapping": False,
        "endpointTypes": ["ENDPOINT_TYPE_VM"],
        "icmpIdleTimeoutSec": 30,
        "tcpEstablishedIdleTimeoutSec": 1200,
        "tcpTimeWaitTimeoutSec": 120,
        "tcpTransitoryIdleTimeoutSec": 30,
        "type": "PUBLIC",
        "udpIdleTimeoutSec": 30,
        **nat,
        **lists,
        "subnetworks": subnetworks,
    }


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every range of a subnetwork or of an allocated range, with its field name."""
    if "ipCidrRange" in body:
        yield "ipCidrRange", body["ipCidrRange"]
    if "prefixLength" in body and "address" in body:
        yield "address", f"{body['address']}/{body['prefixLength']}"
    for index, secondary in enumerate(body.get("secondaryIpRanges", [])):
        yield f"secondaryIpRanges[{index}].ipCidrRange", secondary["ipCidrRange"]


def _refuse_overlap(body: Mapping[str, Any], other: CloudObject) -> None:
    for _, taken in _blocks(other.body):
        for label, block in _blocks(body):
            if ip_network(block).overlaps(ip_network(taken)):
                raise _invalid(
                    f"Invalid value for field 'resource.{label}': '{block}'. Invalid IPCidrRange: {block} conflicts "
                    f"with existing subnetwork '{last(other.name)}' in region '{other.name.split('/')[3]}'."
                )


def _require_block(label: str, block: str) -> None:
    try:
        network = IPv4Network(block)
    except ValueError as problem:
        raise _invalid(f"Invalid value for field 'resource.{label}': '{block}'. {problem}") from None
    # "VPC subnets": IPv4 subnet ranges, valid sizes.
    if not 4 <= network.prefixlen <= 29:
        raise _invalid(
            f"Invalid value for field 'resource.{label}': '{block}'. Invalid IPCidrRange: a subnet range has between "
            "/4 and /29."
        )


def _not_found(call: Call) -> RefusedCall:
    return RefusedCall(404, f"The resource '{call.name}' was not found", "notFound")


def _exhausted(where: str) -> RefusedCall:
    return RefusedCall(400, f"IP space of '{where}' is exhausted.", "IP_SPACE_EXHAUSTED_WITH_DETAILS")


def _invalid(message: str) -> RefusedCall:
    return RefusedCall(400, message, "invalid")
