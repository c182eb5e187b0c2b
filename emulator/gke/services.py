"""GKE's Service controller: a LoadBalancer gets an address; once deleted, it leaves firewall rules behind for a while.

Those rules are made outside any Pulumi program, and they keep a VPC from being deleted
(terraform-provider-google issue 5948).
"""

from __future__ import annotations

import hashlib

from emulator.google.cloud import Cloud, CloudObject, Use
from emulator.google.collection import name_path
from emulator.kubernetes.api import Api, Body

_FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
_KIND = "compute/firewall"

CLEANUP_SECONDS = 4.0
"""How long a deleted Service's firewall rules stay; on real GKE it takes minutes."""


class LoadBalancers:
    """The controller of one cluster."""

    def __init__(self, api: Api, cloud: Cloud) -> None:
        self._api, self._cloud = api, cloud

    def step(self) -> None:
        """Bring every Service's address, finalizer and firewall rule up to date."""
        for service in self._api.list("v1", "Service"):
            metadata = service["metadata"]
            held = _FINALIZER in metadata.get("finalizers", [])
            wanted = service["spec"].get("type") == "LoadBalancer" and "deletionTimestamp" not in metadata
            if wanted:
                self._serve(service, held)
            elif held:
                self._release(service)

    def _serve(self, service: Body, held: bool) -> None:
        if not held:
            finalizers = [*service["metadata"].get("finalizers", []), _FINALIZER]
            if self._api.merge(service, {"metadata": {"finalizers": finalizers}}) is None:
                return  # deleted meanwhile: nobody would remove its firewall rule
        cluster = next(iter(self._cloud.list("container/cluster")), None)
        if cluster is None or service.get("status", {}).get("loadBalancer", {}).get("ingress"):
            return
        self._open(service, cluster)
        # An address from the block for documentation (RFC 5737): nothing answers there, nothing leaves this machine.
        address = f"192.0.2.{1 + int(_digest(service), 16) % 253}"
        status = {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}
        self._api.merge(service, {"status": status}, subresource="status")

    def _open(self, service: Body, cluster: CloudObject) -> None:
        network, project = name_path(str(cluster.body["networkConfig"]["network"])), cluster.name.split("/")[1]
        rule = f"k8s-fw-l4-{_digest(service)}"
        ports = [str(port["port"]) for port in service["spec"].get("ports", [])]
        body = {
            "name": rule,
            "network": network,
            "direction": "INGRESS",
            "description": f'{{"kubernetes.io/service-name":"{_full_name(service)}"}}',
            "allowed": [{"IPProtocol": "tcp", "ports": ports}],
        }
        self._cloud.put(_KIND, _rule(project, rule), body, [Use(kind="compute/network", name=network)])

    def _release(self, service: Body) -> None:
        for rule in self._cloud.list(_KIND):
            if rule.body.get("name") == f"k8s-fw-l4-{_digest(service)}":
                self._cloud.expire(_KIND, rule.name, CLEANUP_SECONDS)
        rest = [name for name in service["metadata"]["finalizers"] if name != _FINALIZER]
        self._api.merge(service, {"metadata": {"finalizers": rest}})


def _rule(project: str, name: str) -> str:
    return f"projects/{project}/global/firewalls/{name}"


def _full_name(service: Body) -> str:
    return f"{service['metadata']['namespace']}/{service['metadata']['name']}"


def _digest(service: Body) -> str:
    return hashlib.sha256(service["metadata"]["uid"].encode()).hexdigest()[:8]
