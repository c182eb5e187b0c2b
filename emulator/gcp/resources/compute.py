"""Networks and what is in them, with the calls that pulumi-gcp makes for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from emulator.gcp.resources.google_client import Body, GoogleClient
from emulator.gcp.resources.resource import Resource, fill
from emulator.google.collection import last, name_path
from emulator.google.errors import RefusedCall

_SUBNETWORKS = "projects/{project}/regions/{region}/subnetworks"

_RANGES = {"sourceIpRangesToNats": "sourceIpRangesToNat"}
"""Fields of a NAT's subnetwork that pulumi-gcp names in the plural."""

_PROXY_ONLY = frozenset({"GLOBAL_MANAGED_PROXY", "REGIONAL_MANAGED_PROXY"})
"""Purposes of subnetworks that take no log settings."""


@dataclass(frozen=True, kw_only=True)
class ComputeResource(Resource):
    """A resource type of Compute Engine."""

    references: Mapping[str, str] = field(default_factory=dict)
    """Inputs that name another resource, and its location if they give only its bare name."""
    computed: Mapping[str, Any] = field(default_factory=dict)
    """Outputs that exist even if the answer leaves them out."""
    numbers: tuple[str, ...] = ()
    """Outputs that hold the resource's number."""

    def finished(self, google: GoogleClient, answer: Body) -> Body:
        """Wait for the operation that a call answers with."""
        google.await_status(f"compute/{answer['selfLink'].partition('/compute/')[2]}", answer)
        return answer

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Send what changed; removed fields are null."""
        if changed := changed_fields(self.body(old), self.body(new)):
            self.send(google, "PATCH", identity, changed)

    def send(self, google: GoogleClient, verb: str, path: str, body: Mapping[str, Any]) -> None:
        """Make a call and wait for its operation; `path` is the resource's name path plus a method's name."""
        self.finished(google, google.call(verb, self.path(path), body))

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        sent = super().body({**inputs, **named(self.references, inputs)})
        if "{region}" in self.parent:
            sent["region"] = fill("projects/{project}/global/regions/{region}", inputs)
        return sent

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = {**self.computed, **super().outputs(identity, answer, given)}
        for one in self.references:
            if one in result:
                result[one] = as_given(result[one], given.get(one, ""))
        result |= dict.fromkeys(self.numbers, int(answer["id"]))
        return {**result, "selfLink": str(answer["selfLink"]).replace("/compute/beta/", "/compute/v1/")}


@dataclass(frozen=True, kw_only=True)
class Network(ComputeResource):
    """`gcp:compute/network:Network`."""

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        order = {"networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL"}
        sent = {"autoCreateSubnetworks": True, **order, **super().body(inputs)}
        if routing := sent.get("routingConfig"):
            sent["routingConfig"] = {"deleteBgpAlwaysCompareMed": False, **routing}
        return sent

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Routing in one call, the rest in another."""
        after, changed = self.body(new), changed_fields(self.body(old), self.body(new))
        together = ("networkFirewallPolicyEnforcementOrder", "routingConfig")
        if any(key in changed for key in together):
            self.send(google, "PATCH", identity, {key: after[key] for key in together if key in after})
        if rest := {key: value for key, value in changed.items() if key not in together}:
            now = google.call("GET", self.path(identity))
            self.send(google, "PATCH", identity, {"fingerprint": now.get("fingerprint"), **rest})

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        number = answer["id"]
        return {**super().outputs(identity, answer, given), "networkId": number, "numericId": number}


@dataclass(frozen=True, kw_only=True)
class Subnetwork(ComputeResource):
    """`gcp:compute/subnetwork:Subnetwork`."""

    _together: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("secondaryIpRanges",),
        ("logConfig",),
        ("purpose", "role"),
        ("allowSubnetCidrRoutesOverlap",),
        ("externalIpv6Prefix", "ipv6AccessType", "privateIpv6GoogleAccess", "stackType"),
    )

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        sent = super().body(inputs)
        if "logConfig" in sent:
            sent["logConfig"] = {"enable": True, **sent["logConfig"]}
        else:
            sent["logConfig"] = None if sent.get("purpose") in _PROXY_ONLY else {"enable": False}
        return sent

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Each part by its own call."""
        changed = changed_fields(self.body(old), self.body(new))
        if "ipCidrRange" in changed:
            block = {"ipCidrRange": changed["ipCidrRange"]}
            self.send(google, "POST", f"{identity}/expandIpCidrRange", block)
        if "privateIpGoogleAccess" in changed:
            access = {"privateIpGoogleAccess": True} if changed["privateIpGoogleAccess"] else {}
            self.send(google, "POST", f"{identity}/setPrivateIpGoogleAccess", access)
        for group in self._together:
            if part := {key: changed[key] for key in group if key in changed}:
                now = google.call("GET", self.path(identity))
                self.send(google, "PATCH", identity, {"fingerprint": now["fingerprint"], **part})

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = super().outputs(identity, answer, given)
        result.pop("fingerprint")  # no longer read
        log = {key: value for key, value in result.pop("logConfig", {}).items() if key != "enable"}
        return {**result, **({"logConfig": log} if answer.get("logConfig", {}).get("enable") else {})}


@dataclass(frozen=True, kw_only=True)
class Router(ComputeResource):
    """`gcp:compute/router:Router`."""

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        return {"bgp": None, **super().body(inputs)}


@dataclass(frozen=True, kw_only=True)
class RouterNat(ComputeResource):
    """`gcp:compute/routerNat:RouterNat`: an entry in its router, all of whose NATs are written at once."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Add the NAT to its router; returns its id."""
        identity = fill(self.identity, inputs)

        def added(nats: list[Body]) -> list[Body]:
            if _entry(nats, identity):
                raise RefusedCall(409, "Unable to create RouterNat, existing object already found", "alreadyExists")
            return [*nats, self.body(inputs)]

        self._change(google, identity, added)
        return identity

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs, or None if the router or the NAT is gone."""
        router = google.find(self._router(identity))
        found = _entry(router.get("nats", []), identity) if router else None
        if found is None:
            return None
        project, region, name, _ = identity.split("/")
        own = {key: given[key] for key in ("initialNatIps", "deletionPolicy") if key in given}
        places = {"project": project, "region": region, "router": given.get("router", name)}
        wanted = {last(one["name"]): one["name"] for one in given.get("subnetworks", [])}
        back = {rest: pulumi for pulumi, rest in _RANGES.items()}
        subnetworks = [
            {**_renamed(one, back), "name": as_given(one["name"], wanted.get(last(one["name"]), ""))}
            for one in found.get("subnetworks", [])
        ]
        return {**found, **own, **places, "subnetworks": subnetworks}

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Rewrite the NAT; the router's other NATs stay as they are."""
        kept, name = ("autoNetworkTier", "endpointTypes", "minPortsPerVm"), last(identity)

        def changed(nat: Body) -> Body:
            return {**{key: nat[key] for key in kept if key in nat}, **self.body(new)}

        self._change(google, identity, lambda nats: [changed(nat) if nat["name"] == name else nat for nat in nats])

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Take the NAT from its router."""
        name = last(identity)
        self._change(google, identity, lambda nats: [nat for nat in nats if nat["name"] != name])

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The NAT in its router's body, with the schema's defaults and with empty lists."""
        elsewhere = ("project", "region", "router", "deletionPolicy")
        given = {key: value for key, value in inputs.items() if key not in elsewhere}
        lists = ("drainNatIps", "initialNatIps", "nat64Subnetworks", "natIps", "rules")
        subnetworks = [
            {**_renamed(one, _RANGES), **named({"name": _SUBNETWORKS}, {**inputs, **one})}
            for one in inputs.get("subnetworks", [])
        ]
        return {**self.computed, **{key: [] for key in lists}, **given, "subnetworks": subnetworks}

    def _router(self, identity: str) -> str:
        return fill(self.parent, dict(zip(("project", "region", "router"), identity.split("/"), strict=False)))

    def _change(self, google: GoogleClient, identity: str, change: Callable[[list[Body]], list[Body]]) -> None:
        path = self._router(identity)
        with google.alone(path):
            nats = change(google.call("GET", path).get("nats", []))
            self.finished(google, google.call("PATCH", path, {"nats": nats}))


@dataclass(frozen=True, kw_only=True)
class Firewall(ComputeResource):
    """`gcp:compute/firewall:Firewall`."""

    _empty: ClassVar[Body] = {
        "description": "",
        "destinationRanges": [],
        "disabled": False,
        "priority": 1000,
        "sourceRanges": [],
        "sourceServiceAccounts": [],
        "sourceTags": [],
        "targetServiceAccounts": [],
        "targetTags": [],
    }

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        sent = super().body(inputs)
        logged = bool(sent.pop("enableLogging", False)) or "logConfig" in sent
        sent["logConfig"] = {**sent.get("logConfig", {}), "enable": logged}
        for own, rest in (("allows", "allowed"), ("denies", "denied")):
            if own in sent:
                sent[rest] = [_rule(one) for one in sent.pop(own)]
        return sent

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Send the whole rule, except its name and direction."""
        body = {"allowed": [], "denied": [], **self._empty, **self.body(new)}
        body.pop("direction", None)
        self.send(google, "PATCH", identity, body)

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = super().outputs(identity, answer, given)
        for own, rest in (("allows", "allowed"), ("denies", "denied")):
            rules = [{"protocol": one["IPProtocol"], "ports": one.get("ports", [])} for one in answer.get(rest, [])]
            if rules or own in given:
                result[own] = rules
        log = result.pop("logConfig", {})
        if "enableLogging" in given:
            result["enableLogging"] = log.get("enable", False)
        elif log.pop("enable", False):
            result["logConfig"] = log
        return result


@dataclass(frozen=True, kw_only=True)
class Address(ComputeResource):
    """`gcp:compute/address:Address` and `gcp:compute/globalAddress:GlobalAddress`."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Reserve the address, and label it."""
        identity = super().create(google, inputs)
        self._label(google, identity, self.body(inputs))
        return identity

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change its labels; every other change replaces it."""
        self._label(google, identity, self.body(new))

    def _label(self, google: GoogleClient, identity: str, body: Mapping[str, Any]) -> None:
        now = google.call("GET", self.path(identity))
        labels = {"labels": body["labels"], "labelFingerprint": now["labelFingerprint"]}
        self.send(google, "POST", f"{identity}/setLabels", labels)


def named(references: Mapping[str, str], inputs: Mapping[str, Any]) -> dict[str, str]:
    """The inputs that name other resources, each as a name path."""
    result: dict[str, str] = {}
    for one, collection in references.items():
        if path := name_path(str(inputs.get(one, ""))):
            result[one] = path if "/" in path else f"{fill(collection, inputs)}/{path}"
    return result


def as_given(answered: str, given: str) -> str:
    """A resource that an answer names by URL, in the form that the program used."""
    path = name_path(answered)
    return given if last(given) == last(path) else path


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Body:
    """The fields that differ; removed ones are None."""
    return {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}


def _entry(nats: list[Body], identity: str) -> Body | None:
    return next((nat for nat in nats if nat["name"] == last(identity)), None)


def _renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> Body:
    return {names.get(key, key): value for key, value in given.items()}


def _rule(given: Mapping[str, Any]) -> Body:
    return {"IPProtocol": given["protocol"], **({"ports": given["ports"]} if given.get("ports") else {})}
