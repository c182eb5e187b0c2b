"""Clusters, whose endpoint is always the local API server.

What GKE fills in: GKE API reference, Cluster, ControlPlaneEndpointsConfig and NetworkConfig. What the provider reads of
it: hashicorp/terraform-provider-google-beta v7.45.0, resource_container_cluster.go.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from emulator.google import policies
from emulator.google.apis.kubernetes_engine import cluster_parts
from emulator.google.apis.kubernetes_engine.cluster_operations import begin, link, require_idle, status
from emulator.google.apis.kubernetes_engine.node_pools import GKE_VERSION, NodePools
from emulator.google.apis.kubernetes_engine.places import bad, digest, full, pruned, region_of, require_name, zones_of
from emulator.google.apis.kubernetes_engine.pool_rules import CLUSTER, POOL
from emulator.google.cloud import Cloud, CloudObject, Use, timestamp
from emulator.google.collection import Body, Call, Collection, last
from emulator.google.errors import RefusedCall
from emulator.google.scope import project_number

_DEFAULT_POOL = "default-pool"

_UPDATES = {
    "desiredClusterAutoscaling": "autoscaling",
    "desiredNodeKubeletConfig": "nodePoolDefaults.nodeConfigDefaults.nodeKubeletConfig",
    "desiredNodePoolLoggingConfig": "nodePoolDefaults.nodeConfigDefaults.loggingConfig",
}
"""Fields of an update whose place in the cluster does not follow from their names."""

NODE_POOLS = NodePools()


class Clusters(Collection):
    """`projects/p/locations/l/clusters/c`."""

    kind = CLUSTER
    items = "clusters"

    def shown(self, call: Call, found: CloudObject) -> Body:
        """The cluster. `nodeConfig` is that of its first pool (GKE API, Cluster: "populated with the node configuration
        of the first node pool"), and `initialNodeCount` disappears with the pool that was made with the cluster."""
        body: Body = {**found.body, "status": status(call, found.name)}
        pools = call.cloud.list(POOL, f"{found.name}/nodePools/")
        if not any(last(pool.name) == _DEFAULT_POOL for pool in pools):
            body.pop("initialNodeCount", None)
        if not pools:
            return body
        shown = [NODE_POOLS.shown(call, pool) for pool in sorted(pools, key=lambda pool: pool.name)]
        groups = [group for pool in shown for group in pool["instanceGroupUrls"]]
        return {**body, "nodeConfig": shown[0]["config"], "nodePools": shown, "instanceGroupUrls": groups}

    def do_create(self, call: Call) -> Body:
        given = dict(call.body["cluster"])
        name = f"{call.name}/{given.get('name', '')}"
        if call.cloud.find(self.kind, name) is None:
            require_idle(call, name)
        pools = given.pop("nodePools", [])
        node, count = given.pop("nodeConfig", {}), given.get("initialNodeCount", 0)
        if count:
            pools = [{"name": _DEFAULT_POOL, "config": node, "initialNodeCount": count}]
        if not pools and not given.get("autopilot", {}).get("enabled"):
            raise bad("Cluster.initial_node_count must be greater than zero.")
        body = self._settled(call, name, self._filled(call, name, given))
        call.cloud.create(self.kind, name, body, _uses(body))
        cluster_parts.make(call.cloud, name, body)
        for pool in pools:
            NODE_POOLS.make(call, f"{name}/nodePools/{pool.get('name', '')}", pool)
        return begin(call, "CREATE_CLUSTER", name)

    def do_update(self, call: Call) -> Body:
        found, update = self.found(call), dict(call.body["update"])
        if scaling := update.pop("desiredNodePoolAutoscaling", None):
            pool = call.cloud.get(POOL, f"{found.name}/nodePools/{update.pop('desiredNodePoolId', '')}")
            return NODE_POOLS.changed(call, pool, {"autoscaling": scaling})
        update.pop("desiredMasterVersion", None)  # there is only one version, which every master runs already
        body = json.loads(json.dumps(found.body))
        for key, value in update.items():
            *parents, name = _place(call, key).split(".")
            at = body
            for parent in parents:
                at = at.setdefault(parent, {})
            at[name] = value
        return self._changed(call, found, body, "UPDATE_CLUSTER")

    def do_set_resource_labels(self, call: Call) -> Body:
        found = self.found(call)
        if call.body.get("labelFingerprint") != found.body["labelFingerprint"]:
            message = (
                "Labels could not be set due to fingerprint mismatch; try again with the proper fingerprint: incorrect "
                f'fingerprint supplied was "{call.body.get("labelFingerprint", "")}", the expected one is '
                f'"{found.body["labelFingerprint"]}".'
            )
            raise RefusedCall(400, message, "failedPrecondition")
        return self._changed(
            call, found, {**found.body, "resourceLabels": call.body.get("resourceLabels", {})}, "SET_LABELS"
        )

    def do_set_maintenance_policy(self, call: Call) -> Body:
        found = self.found(call)
        body = {**found.body, "maintenancePolicy": call.body["maintenancePolicy"]}
        return self._changed(call, found, body, "SET_MAINTENANCE_POLICY")

    def admit_removal(self, call: Call, found: CloudObject) -> None:
        require_idle(call, found.name)

    def removed(self, call: Call, found: CloudObject) -> None:
        cluster_parts.let_go(call.cloud, found.name)

    def answer(self, call: Call, found: CloudObject, verb: str) -> Body:
        return begin(call, "DELETE_CLUSTER", found.name)

    def _changed(self, call: Call, found: CloudObject, body: Body, kind: str) -> Body:
        require_idle(call, found.name)
        body = self._settled(call, found.name, body)
        call.cloud.put(self.kind, found.name, body, _uses(body))
        return begin(call, kind, found.name)

    def _filled(self, call: Call, name: str, given: Body) -> Body:
        """A new cluster with what Google adds to it."""
        project, location = call.project, name.split("/")[3]
        network = full(given.get("network", "default"), project, "global/networks")
        places = {"network": network}
        if "subnetwork" in given:
            collection = f"regions/{region_of(location)}/subnetworks"
            places["subnetwork"] = full(given["subnetwork"], project, collection)
        return {
            "createTime": timestamp(call.cloud.now()),
            "currentMasterVersion": GKE_VERSION,
            "currentNodeVersion": GKE_VERSION,
            "databaseEncryption": {"state": "DECRYPTED"},
            "defaultMaxPodsConstraint": {"maxPodsPerNode": "110"},
            "id": secrets.token_hex(32),
            "initialClusterVersion": GKE_VERSION,
            "legacyAbac": {},
            "location": location,
            "locations": zones_of(location),
            "selfLink": link(call, name),
            "zone": location,
            **given,
            **{key: last(path) for key, path in places.items()},
            **_addresses(call.cloud, given),
            "networkConfig": {**given.get("networkConfig", {}), **places},
        }

    def _settled(self, call: Call, name: str, body: Body) -> Body:
        """A whole body as GKE stores it. Raises RefusedCall."""
        # These are reported even where they are false.
        explicit = _addresses(call.cloud, body)["controlPlaneEndpointsConfig"]
        body = {**pruned(body), "controlPlaneEndpointsConfig": explicit}
        subnetwork = body["networkConfig"].get("subnetwork")
        if subnetwork:
            body |= _blocks(call.cloud.get("compute/subnetwork", subnetwork), body)
        _admit(call.project, name, body)
        self._admit_key(call, name, body["databaseEncryption"])
        # GKE API, MaintenancePolicy: "a hash identifying the version of this policy"; an absent policy has one too.
        policy = body.get("maintenancePolicy", {})
        policy = {**policy, "resourceVersion": digest(policy.get("window", {}))}
        body |= {"labelFingerprint": digest(body.get("resourceLabels", {})), "maintenancePolicy": policy}
        return {**body, "etag": digest(body)}

    def _admit_key(self, call: Call, name: str, encryption: Body) -> None:
        """Refuse a key that GKE's agent may not use yet (GKE documentation, "Encrypt secrets at the application layer":
        the agent is granted access to the key first)."""
        before = call.cloud.find(self.kind, name)
        if encryption["state"] != "ENCRYPTED" or (before and before.body["databaseEncryption"] == encryption):
            return
        agent = f"serviceAccount:service-{project_number(call.project)}@container-engine-robot.iam.gserviceaccount.com"
        key = policies.full_name("cloudkms.googleapis.com", encryption["keyName"])
        role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
        if role not in policies.roles_in_effect(call.cloud, key, agent):
            raise bad(
                f"Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied for {agent} on "
                f"{encryption['keyName']}: it needs {role}."
            )


def _place(call: Call, key: str) -> str:
    """The place in a cluster where the value of an update's field belongs. Raises RefusedCall."""
    if key in _UPDATES:
        return _UPDATES[key]
    name = key.removeprefix("desired")
    name = name[:1].lower() + name[1:]
    document = call.method.document
    if name in document.schema("NetworkConfig")["properties"]:
        return f"networkConfig.{name}"
    if name in document.schema("Cluster")["properties"]:
        return name
    raise RefusedCall(501, f"the emulated Google does not serve {key} of an update", "notImplemented")


def _admit(project: str, name: str, body: Mapping[str, Any]) -> None:
    """Refuse a cluster that GKE would not create or update."""
    require_name(body["name"], "cluster")
    pool = body.get("workloadIdentityConfig", {}).get("workloadPool")
    if pool and pool != f"{project}.svc.id.goog":
        raise bad(f"Workload pool {pool!r} is invalid; it must be '{project}.svc.id.goog'.")
    network = body["networkConfig"]
    if network.get("enableMultiNetworking") and network.get("datapathProvider") != "ADVANCED_DATAPATH":
        raise bad("Multi-networking requires Dataplane V2 (datapath_provider ADVANCED_DATAPATH).")
    region = region_of(name.split("/")[3])
    for zone in body["locations"]:
        if region_of(zone) != region:
            raise bad(f"Node location {zone!r} is not in the cluster's region {region!r}.")


def _addresses(cloud: Cloud, body: Mapping[str, Any]) -> Body:
    """Addresses of the control plane. The emulated one has a single address, for every endpoint."""
    file = cloud.directory / "control-plane.json"
    plane = json.loads(file.read_text()) if file.exists() else {}
    endpoint = str(plane.get("endpoint", ""))
    given = body.get("controlPlaneEndpointsConfig", {})
    by_ip = {"enabled": True, "enablePublicEndpoint": True, **given.get("ipEndpointsConfig", {})}
    if by_ip["enabled"]:
        by_ip |= {"privateEndpoint": endpoint, "publicEndpoint": endpoint}
    by_name = {"allowExternalTraffic": False, **given.get("dnsEndpointConfig", {}), "endpoint": endpoint}
    return {
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": by_name, "ipEndpointsConfig": by_ip},
        "endpoint": endpoint,
        "masterAuth": {"clusterCaCertificate": str(plane.get("ca", ""))},
    }


def _blocks(subnetwork: CloudObject, body: Mapping[str, Any]) -> Body:
    """The ranges of pods and Services, by the subnetwork ranges that the cluster names. Raises RefusedCall."""
    ranges = {one["rangeName"]: one["ipCidrRange"] for one in subnetwork.body.get("secondaryIpRanges", [])}
    policy = dict(body.get("ipAllocationPolicy", {}))
    for part, word in (("cluster", "Pod"), ("services", "Services")):
        named = policy.get(f"{part}SecondaryRangeName")
        if named and named not in ranges:
            network = f"https://www.googleapis.com/compute/v1/{body['networkConfig']['network']}"
            subnet = last(subnetwork.name)
            raise bad(f'{word} secondary range "{named}" not found in network "{network}", subnetwork "{subnet}".')
        if named:
            policy[f"{part}Ipv4CidrBlock"] = ranges[named]
            _require_size(part, int(ranges[named].partition("/")[2]))
    top = {f"{part}Ipv4Cidr": policy.get(f"{part}Ipv4CidrBlock", "") for part in ("cluster", "services")}
    return {"ipAllocationPolicy": policy, **{key: block for key, block in top.items() if block}}


def _require_size(part: str, prefix: int) -> None:
    """Refuse less than a /21 for pods, and more than a /16 for Services (rancher/rancher issues 36254 and 32413)."""
    if part == "cluster" and prefix > 21:
        raise bad(f"Cluster CIDR range is greater than maximum ({prefix} > 21).")
    if part == "services" and prefix < 16:
        raise bad(f"Services CIDR range is smaller than minimum ({prefix} < 16).")


def _uses(body: Mapping[str, Any]) -> list[Use]:
    places = body["networkConfig"]
    return [Use(kind=f"compute/{key}", name=places[key]) for key in ("network", "subnetwork") if key in places]
