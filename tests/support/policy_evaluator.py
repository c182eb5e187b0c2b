"""What a set of Kubernetes NetworkPolicies lets through, computed from their specs alone (networking.k8s.io/v1).

Semantics of the Kubernetes documentation, "Network Policies": a pod that no policy selects for a direction is open in
it, a selected one takes what any policy allows, and a flow between two pods needs both ends' consent. Named ports and
port ranges are refused, since nothing here uses them. Numbers are fractions once the Pulumi engine has had them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod of the cluster."""

    namespace: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Outside:
    """An address that is no pod's: a node service, the control plane, the internet."""

    address: str


Peer = Pod | Outside


def allows(policies: Iterable[Mapping[str, Any]], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether `policies` (whole objects, each in its namespace) let `source` open `port` of `target`."""
    found = list(policies)
    return _consents(found, "Egress", source, target, port, protocol) and _consents(
        found, "Ingress", target, source, port, protocol
    )


def _consents(
    policies: list[Mapping[str, Any]],
    direction: Literal["Egress", "Ingress"],
    end: Peer,
    other: Peer,
    port: int,
    protocol: str,
) -> bool:
    if isinstance(end, Outside):
        return True  # NetworkPolicies bind pods only
    selecting = [policy for policy in policies if _selects(policy, direction, end)]
    rules = [rule for policy in selecting for rule in policy["spec"].get(direction.lower(), [])]
    side = "to" if direction == "Egress" else "from"
    return not selecting or any(
        _names(rule.get(side), other, end.namespace) and _opens(rule.get("ports"), port, protocol) for rule in rules
    )


def _selects(policy: Mapping[str, Any], direction: str, pod: Pod) -> bool:
    spec = policy["spec"]
    return (
        policy["metadata"]["namespace"] == pod.namespace
        and direction in spec["policyTypes"]
        and _matches(spec["podSelector"], pod.labels)
    )


def _names(peers: list[Mapping[str, Any]] | None, other: Peer, namespace: str) -> bool:
    return not peers or any(_is_peer(peer, other, namespace) for peer in peers)


def _is_peer(peer: Mapping[str, Any], other: Peer, namespace: str) -> bool:
    if "ipBlock" in peer:
        return isinstance(other, Outside) and _in_block(peer["ipBlock"], other.address)
    if isinstance(other, Outside):
        return False
    if "namespaceSelector" in peer:
        # The API server puts this label on every namespace.
        in_namespace = _matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        in_namespace = other.namespace == namespace
    return in_namespace and _matches(peer.get("podSelector", {}), other.labels)


def _in_block(block: Mapping[str, Any], address: str) -> bool:
    found = ipaddress.ip_address(address)
    return found in ipaddress.ip_network(block["cidr"]) and not any(
        found in ipaddress.ip_network(excepted) for excepted in block.get("except", [])
    )


def _opens(ports: list[Mapping[str, Any]] | None, port: int, protocol: str) -> bool:
    if not ports:
        return True
    for opened in ports:
        if not isinstance(opened.get("port"), int | float) or "endPort" in opened:
            raise ValueError(f"only single numbered ports are understood, not {dict(opened)}")
    return any(opened["port"] == port and opened.get("protocol", "TCP") == protocol for opened in ports)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case operator:
            raise ValueError(f"{operator!r} is no operator of a label selector")
