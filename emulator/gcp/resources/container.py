"""Clusters and node pools."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.gcp.resources import node_config
from emulator.gcp.resources.google_client import Body, GoogleClient
from emulator.gcp.resources.resource import Resource, fill
from emulator.google.collection import last
from emulator.google.errors import RefusedCall

_POLL_SECONDS = 0.05
_BUSY_SECONDS = 600.0
"""How long a call is retried while another operation runs on its cluster."""

_CONFIG_WRAPPED = {"labels": "labels", "resourceLabels": "labels", "tags": "tags", "taints": "taints"}
_MACHINE = ("machineType", "diskType", "diskSizeGb")


@dataclass(frozen=True, kw_only=True)
class _OfGke(Resource):
    """What clusters and pools have in common: calls that start operations, one at a time."""

    def change(self, google: GoogleClient, verb: str, path: str, body: Body | None = None) -> None:
        """Change a cluster: retry while another operation runs on it, then wait for the call's own operation."""
        deadline = time.monotonic() + _BUSY_SECONDS
        operation: Body | None = None
        while operation is None:
            try:
                operation = google.call(verb, path, body)
            except RefusedCall as error:
                if "incompatible operation" not in error.message or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
        place = path.partition("/clusters")[0]
        while operation["status"] != "DONE":
            time.sleep(_POLL_SECONDS)
            operation = google.call("GET", f"{place}/operations/{operation['name']}")

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Delete an existing object."""
        self.change(google, "DELETE", self.path(identity))

    def change_nodes(self, google: GoogleClient, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change the configuration of a pool's nodes: machine and disk in one call, every other field in its own."""
        name, changed = last(path), dict(_changed(old, new))
        if any(key in changed for key in _MACHINE):
            machine = {key: new[key] for key in _MACHINE if key in new}
            self.change(google, "PUT", path, {"name": name, **machine})
        for key, value in changed.items():
            if key not in _MACHINE:
                wrapped = {_CONFIG_WRAPPED[key]: value} if key in _CONFIG_WRAPPED else value
                # Empty values are not sent (google-beta v7.45.0, node_config.go, GetOk).
                self.change(google, "PUT", path, {"name": name, **({key: wrapped} if value else {})})


@dataclass(frozen=True, kw_only=True)
class Cluster(_OfGke):
    """`gcp:container/cluster:Cluster`."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the cluster, and delete its default pool if asked to; returns the id."""
        identity = fill(self.identity, inputs)
        body = {**self.body(inputs), "name": inputs["name"]}
        self.change(google, "POST", fill(self.parent, inputs), {"cluster": body})
        if inputs.get("removeDefaultNodePool"):
            self._remove_default_pool(google, self.path(identity))
        return identity

    def _remove_default_pool(self, google: GoogleClient, path: str) -> None:
        pool = f"{path}/nodePools/default-pool"
        if google.find(pool) is not None:
            self.change(google, "DELETE", pool)

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change the parts that differ, each by its own call."""
        path, before, after = self.path(identity), self.body(old), self.body(new)
        if new.get("removeDefaultNodePool") and not old.get("removeDefaultNodePool"):
            self._remove_default_pool(google, path)
        for key, value in _changed(before, after):
            match key:
                case "resourceLabels":
                    labels = {"labelFingerprint": google.call("GET", path)["labelFingerprint"], key: value}
                    self.change(google, "POST", f"{path}:setResourceLabels", labels)
                case "maintenancePolicy":
                    version = google.call("GET", path)["maintenancePolicy"]["resourceVersion"]
                    policy = {**value, "resourceVersion": version}
                    self.change(google, "POST", f"{path}:setMaintenancePolicy", {key: policy})
                case "networkConfig":
                    for part, changed in _changed(before.get(key, {}), value):
                        self._update(google, path, part, changed)
                case "nodePoolDefaults":
                    kubelet = value.get("nodeConfigDefaults", {}).get("nodeKubeletConfig", {})
                    self._update(google, path, "nodeKubeletConfig", kubelet)
                case "nodeConfig":
                    self.change_nodes(google, f"{path}/nodePools/default-pool", before.get(key, {}), value)
                case "initialClusterVersion":
                    if _version(google.call("GET", path)["currentMasterVersion"]) < _version(value):
                        self._update(google, path, "masterVersion", value)
                case "privateClusterConfig":
                    pass  # what can be changed here is also part of networkConfig
                case _:
                    self._update(google, path, key, value)

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Delete the cluster unless it has deletion protection, which only the provider knows."""
        if outputs.get("deletionProtection", True):
            raise RefusedCall(
                400,
                "Cannot destroy cluster because deletion_protection is set to true. Set it to false to proceed with "
                "cluster deletion.",
                "failedPrecondition",
            )
        super().delete(google, identity, outputs)

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        sent = super().body({key: value for key, value in inputs.items() if key not in _SHAPED})
        private = inputs.get("privateClusterConfig", {})
        nodes = {"defaultEnablePrivateNodes": private["enablePrivateNodes"]} if "enablePrivateNodes" in private else {}
        sent["networkConfig"] = {**sent.get("networkConfig", {}), **nodes}
        own = ("enablePrivateNodes", "masterIpv4CidrBlock")
        sent["privateClusterConfig"] = {key: private[key] for key in own if key in private}
        sent["controlPlaneEndpointsConfig"] = _endpoints(inputs)
        sent.setdefault("databaseEncryption", {"state": "DECRYPTED"})
        if "authenticatorGroupsConfig" in sent:
            sent["authenticatorGroupsConfig"] = {**sent["authenticatorGroupsConfig"], "enabled": True}
        if "ipAllocationPolicy" in sent:
            sent["ipAllocationPolicy"] = {**sent["ipAllocationPolicy"], "useIpAliases": True}
        if "defaultMaxPodsPerNode" in inputs:
            sent["defaultMaxPodsConstraint"] = {"maxPodsPerNode": str(inputs["defaultMaxPodsPerNode"])}
        if "maintenancePolicy" in inputs:
            sent["maintenancePolicy"] = {"window": _window(inputs["maintenancePolicy"])}
        if "nodeConfig" in inputs:
            sent["nodeConfig"] = node_config.sent(inputs["nodeConfig"])
        if defaults := inputs.get("nodePoolDefaults", {}).get("nodeConfigDefaults"):
            sent["nodePoolDefaults"] = {"nodeConfigDefaults": {"nodeKubeletConfig": node_config.sent_kubelet(defaults)}}
        return sent

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = super().outputs(identity, answer, given)
        for key in ("minMasterVersion", "nodePools"):
            result.pop(key, None)  # the first is never read back, the second has a type of its own
        endpoints, network = answer["controlPlaneEndpointsConfig"], answer["networkConfig"]
        by_ip, private = endpoints["ipEndpointsConfig"], answer.get("privateClusterConfig", {})
        more: Body = {
            "deletionProtection": True,
            "defaultMaxPodsPerNode": int(answer["defaultMaxPodsConstraint"]["maxPodsPerNode"]),
            "emulatedVersion": "",
            "enableShieldedNodes": answer.get("shieldedNodes", {}).get("enabled", False),
            "initialNodeCount": answer.get("initialNodeCount", 0),
            "maintenancePolicy": _policy(answer["maintenancePolicy"].get("window", {}), given),
            "network": network["network"],
            "networkingMode": "VPC_NATIVE" if answer.get("ipAllocationPolicy", {}).get("useIpAliases") else "ROUTES",
            "nodeConfig": node_config.read(answer.get("nodeConfig", {}), given.get("nodeConfig", {})),
            "nodeLocations": [zone for zone in answer["locations"] if zone != answer["location"]],
            "operation": "",
            "privateClusterConfig": {
                "enablePrivateNodes": network.get("defaultEnablePrivateNodes", False),
                "enablePrivateEndpoint": not by_ip.get("enablePublicEndpoint", False),
                "masterIpv4CidrBlock": private.get("masterIpv4CidrBlock", ""),
                "privateEndpoint": by_ip.get("privateEndpoint", ""),
                "publicEndpoint": by_ip.get("publicEndpoint", ""),
            },
            "servicesIpv4Cidr": answer.get("servicesIpv4Cidr", ""),
            "subnetwork": network.get("subnetwork", ""),
            "tpuIpv4CidrBlock": "",
        }
        if by_ip.get("authorizedNetworksConfig", {}).get("enabled"):
            more["masterAuthorizedNetworksConfig"] = by_ip["authorizedNetworksConfig"]
        if defaults := answer.get("nodePoolDefaults", {}).get("nodeConfigDefaults"):
            port = node_config.read_port(defaults.get("nodeKubeletConfig", {}))
            more["nodePoolDefaults"] = {"nodeConfigDefaults": port}
        kept = {key: given[key] for key in ("deletionProtection", "minMasterVersion") if key in given}
        return node_config.with_zeros({**result, **more, **kept}, given)

    def _update(self, google: GoogleClient, path: str, field: str, value: Any) -> None:
        self.change(google, "PUT", path, {"update": {f"desired{field[0].upper()}{field[1:]}": value}})


_SHAPED = frozenset(
    {
        "defaultMaxPodsPerNode",
        "deletionProtection",
        "maintenancePolicy",
        "masterAuthorizedNetworksConfig",
        "networkingMode",
        "nodeConfig",
        "nodePoolDefaults",
        "privateClusterConfig",
        "removeDefaultNodePool",
    }
)
"""Inputs of a cluster that its body lacks or holds in another form."""


@dataclass(frozen=True, kw_only=True)
class NodePool(_OfGke):
    """`gcp:container/nodePool:NodePool`."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the pool; returns its id."""
        body = {**self.body(inputs), "name": inputs["name"]}
        self.change(google, "POST", fill(self.parent, inputs), {"nodePool": body})
        return fill(self.identity, inputs)

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs, or None: from the list of the cluster's pools, and the sizes of the pool's instance groups."""
        answer = google.find(self.path(identity).rpartition("/")[0])
        pools = (answer or {}).get("nodePools", [])
        pool = next((one for one in pools if one["name"] == last(identity)), None)
        if pool is None:
            return None
        groups = list(self._groups(google, pool["instanceGroupUrls"]))
        sizes = [group["targetSize"] for group in groups]
        found = {
            "nodeCount": sum(sizes) // len(sizes) if sizes else 0,
            "instanceGroupUrls": [group["selfLink"] for group in groups],
            "managedInstanceGroupUrls": [group["instanceGroup"] for group in groups],
        }
        return {**self.outputs(identity, pool, given), **found}

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change the parts that differ, each by its own call."""
        path, before, after = self.path(identity), self.body(old), self.body(new)
        for key, value in _changed(before, after):
            match key:
                case "autoscaling":
                    update = {"desiredNodePoolAutoscaling": value, "desiredNodePoolId": last(identity)}
                    self.change(google, "PUT", path.partition("/nodePools/")[0], {"update": update})
                case "config":
                    self.change_nodes(google, path, before.get(key, {}), value)
                case "management":
                    self.change(google, "POST", f"{path}:setManagement", {key: value})
                case _:
                    name = {"networkConfig": "nodeNetworkConfig", "version": "nodeVersion"}.get(key, key)
                    self.change(google, "PUT", path, {name: value})

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        left = ("cluster", "maxPodsPerNode", "nodeConfig", "nodeCount")
        sent = super().body({key: value for key, value in inputs.items() if key not in left})
        sent["config"] = node_config.sent(inputs.get("nodeConfig", {}))
        if count := inputs.get("nodeCount") or inputs.get("initialNodeCount"):
            sent["initialNodeCount"] = count
        if "maxPodsPerNode" in inputs:
            sent["maxPodsConstraint"] = {"maxPodsPerNode": str(inputs["maxPodsPerNode"])}
        if "autoscaling" in inputs:
            sent["autoscaling"] = {"enabled": True, "minNodeCount": 0, "maxNodeCount": 0, **inputs["autoscaling"]}
        if "upgradeSettings" in inputs:
            sent["upgradeSettings"] = {"strategy": "SURGE", **inputs["upgradeSettings"]}
        return sent

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = super().outputs(identity, answer, given)
        more = {
            "cluster": given.get("cluster", identity.split("/")[5]),
            "initialNodeCount": answer.get("initialNodeCount", 0),
            "maxPodsPerNode": int(answer["maxPodsConstraint"]["maxPodsPerNode"]),
            "nodeConfig": node_config.read(answer["config"], given.get("nodeConfig", {})),
            "operation": "",
        }
        if "queuedProvisioning" in answer:
            more["queuedProvisioning"] = {"enabled": False, **answer["queuedProvisioning"]}
        if not answer.get("autoscaling", {}).get("enabled"):
            result.pop("autoscaling", None)
        return node_config.with_zeros({**result, **more}, given)

    def _groups(self, google: GoogleClient, urls: list[str]) -> Iterator[Body]:
        """The managers of a pool's groups, as far as their zones' lists hold them."""
        for url in urls:
            found = re.search(r"projects/([^/]+)/zones/([^/]+)/instanceGroupManagers/", url)
            if found is None:
                raise RefusedCall(400, f"{url} is no instance group manager", "invalid")
            zone = f"compute/beta/projects/{found[1]}/zones/{found[2]}/instanceGroupManagers"
            yield from (one for one in google.call("GET", zone).get("items", []) if one["selfLink"] == url)


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that differ, with their new values; removed ones are empty."""
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            yield key, new.get(key, type(old.get(key))())


def _version(text: str) -> list[int]:
    """A version's numbers, for comparison."""
    return [int(number) for number in re.findall(r"\d+", text)]


def _endpoints(inputs: Mapping[str, Any]) -> Body:
    """The endpoints of a control plane."""
    given, private = inputs.get("controlPlaneEndpointsConfig", {}), inputs.get("privateClusterConfig", {})
    by_ip = dict(given.get("ipEndpointsConfig", {}))
    if "enablePrivateEndpoint" in private:
        by_ip["enablePublicEndpoint"] = not private["enablePrivateEndpoint"]
    if "masterAuthorizedNetworksConfig" in inputs:
        by_ip["authorizedNetworksConfig"] = {"enabled": True, **inputs["masterAuthorizedNetworksConfig"]}
    return {"dnsEndpointConfig": given.get("dnsEndpointConfig", {}), "ipEndpointsConfig": by_ip}


def _window(policy: Mapping[str, Any]) -> Body:
    """The REST form of the maintenance policy, with exclusions by name."""
    exclusions = {
        one["exclusionName"]: {
            **{key: value for key, value in one.items() if key in ("startTime", "endTime")},
            "maintenanceExclusionOptions": one.get("exclusionOptions", {}),
        }
        for one in policy.get("maintenanceExclusions", [])
    }
    daily = {"dailyMaintenanceWindow": policy["dailyMaintenanceWindow"]} if "dailyMaintenanceWindow" in policy else {}
    return {**daily, "maintenanceExclusions": exclusions}


def _policy(window: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
    """Pulumi's form of the maintenance policy, with exclusions in the order given."""
    order = [one["exclusionName"] for one in given.get("maintenancePolicy", {}).get("maintenanceExclusions", [])]
    exclusions = window.get("maintenanceExclusions", {})
    names = sorted(exclusions, key=lambda name: (order.index(name) if name in order else len(order), name))
    listed = [
        {
            "exclusionName": name,
            **{key: value for key, value in exclusions[name].items() if key in ("startTime", "endTime")},
            "exclusionOptions": exclusions[name].get("maintenanceExclusionOptions", {}),
        }
        for name in names
    ]
    daily = {key: value for key, value in window.items() if key == "dailyMaintenanceWindow"}
    return {**daily, "maintenanceExclusions": listed}
