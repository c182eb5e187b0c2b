"""GKE's network controllers: when a GKENetworkParamSet and a Network are ready, and what delays their deletion.

Conditions, reasons and the finalizer are those of kubernetes/cloud-provider-gcp, pkg/controller/gkenetworkparamset, and
GoogleCloudPlatform/gke-networking-api v0.2.0, apis/network/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from emulator.gke.fit import is_over, networks_named
from emulator.google.cloud import Cloud
from emulator.google.collection import last
from emulator.kubernetes.api import Api, Body, is_true

_VERSION = "networking.gke.io/v1"
_FINALIZER = "networking.gke.io/gnp-controller"
_IN_USE = "networking.gke.io/in-use"


class DeviceNetworkControllers:
    """Both controllers, over the emulated cloud's networks."""

    def __init__(self, api: Api, cloud: Cloud) -> None:
        self._api, self._cloud = api, cloud

    def step(self) -> None:
        """Bring every object's status and finalizer up to date."""
        sets = self._api.list(_VERSION, "GKENetworkParamSet")
        networks = self._api.list(_VERSION, "Network")
        if not sets and not networks:
            return
        for parameters in sets:
            self._parameter_set(parameters, sets, networks)
        ready = {parameters["metadata"]["name"] for parameters in sets if is_true(parameters, "Ready")}
        pods = self._api.list("v1", "Pod") if networks else []
        used = {name for pod in pods if not is_over(pod) for name in networks_named(pod)}
        for network in networks:
            self._network(network, ready, used)

    def _parameter_set(self, parameters: Body, sets: Iterable[Body], networks: Iterable[Body]) -> None:
        name, finalizers = parameters["metadata"]["name"], parameters["metadata"].get("finalizers", [])
        if "deletionTimestamp" in parameters["metadata"]:
            users = [network for network in networks if network["spec"].get("parametersRef", {}).get("name") == name]
            if not users and _FINALIZER in finalizers:
                rest = [finalizer for finalizer in finalizers if finalizer != _FINALIZER]
                self._api.merge(parameters, {"metadata": {"finalizers": rest}})
            return
        if _FINALIZER not in finalizers:
            self._api.merge(parameters, {"metadata": {"finalizers": [*finalizers, _FINALIZER]}})
        reason, message = self._judge(parameters, sets)
        self._tell(parameters, [_condition("Ready", reason == "GNPReady", reason, message)])

    def _judge(self, parameters: Body, sets: Iterable[Body]) -> tuple[str, str]:
        spec = parameters["spec"]
        vpc, subnet = spec.get("vpc", ""), spec.get("vpcSubnet", "")
        if not any(network.body.get("name") == vpc for network in self._cloud.list("compute/network")):
            return "VPCNotFound", f"VPC: {vpc} was not found"
        subnets = self._cloud.list("compute/subnetwork")
        if not any(
            found.body.get("name") == subnet and last(found.body.get("network", "")) == vpc for found in subnets
        ):
            return "SubnetNotFound", f"Subnet: {subnet} was not found in VPC: {vpc}"
        if not spec.get("deviceMode"):
            if spec.get("podIPv4Ranges"):
                return "GNPReady", ""
            words = "SecondaryRange and DeviceMode are unspecified. One must be specified."
            return "SecondaryRangeAndDeviceModeUnspecified", words
        if any(last(cluster.body.get("network", "")) == vpc for cluster in self._cloud.list("container/cluster")):
            return "DeviceModeCantUseDefaultVPC", "GNP with deviceMode can't reference the default VPC"
        for other in sets:
            if other["metadata"]["name"] == parameters["metadata"]["name"]:
                continue
            if other["spec"].get("vpcSubnet") == subnet and _age(other) < _age(parameters):
                return "DeviceModeSubnetAlreadyInUse", f"Subnet {subnet} is in use by GNP {other['metadata']['name']}"
        return "GNPReady", ""

    def _network(self, network: Body, ready: set[str], used: set[str]) -> None:
        metadata = network["metadata"]
        in_use = metadata["name"] in used
        if in_use != (metadata.get("annotations", {}).get(_IN_USE) == "true"):
            self._api.merge(network, {"metadata": {"annotations": {_IN_USE: "true" if in_use else None}}})
        if network["spec"].get("type") != "Device":
            return
        fine = network["spec"].get("parametersRef", {}).get("name") in ready
        self._tell(
            network,
            [
                _condition("ParamsReady", fine, "GNPParamsReady" if fine else "GNPParamsNotReady", ""),
                _condition("Ready", fine, "NetworkReady" if fine else "ParamsNotReady", ""),
            ],
        )

    def _tell(self, target: Body, conditions: list[Body]) -> None:
        before = target.get("status", {}).get("conditions") or []
        if [_essence(entry) for entry in before] != [_essence(entry) for entry in conditions]:
            self._api.merge(target, {"status": {"conditions": conditions}}, subresource="status")
            target.setdefault("status", {})["conditions"] = conditions


def _condition(kind: str, fine: bool, reason: str, message: str) -> Body:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = "True" if fine else "False"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}


def _essence(condition: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(condition.get(key) for key in ("type", "status", "reason", "message"))


def _age(body: Body) -> tuple[str, str]:
    return body["metadata"]["creationTimestamp"], body["metadata"]["name"]
