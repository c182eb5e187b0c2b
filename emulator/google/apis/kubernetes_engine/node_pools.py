"""Node pools. The defaults that GKE fills in are those of the GKE API reference, NodePool and NodeConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.google import policies
from emulator.google.apis.kubernetes_engine import instance_groups
from emulator.google.apis.kubernetes_engine.cluster_operations import begin, link, require_idle, status
from emulator.google.apis.kubernetes_engine.places import bad, digest, pruned
from emulator.google.apis.kubernetes_engine.pool_rules import CLUSTER, POOL, admit_pool, pairs_of
from emulator.google.cloud import CloudObject, Use
from emulator.google.collection import Body, Call, Collection
from emulator.google.permissions import require_permission

GKE_VERSION = "1.36.3-gke.1208000"
"""The version in every release channel of the emulated GKE: the Kubernetes version of the local API server."""

_NODE = {
    "diskSizeGb": 100,
    "diskType": "pd-balanced",
    "imageType": "COS_CONTAINERD",
    "machineType": "e2-medium",
    "serviceAccount": "default",
}

_OPERATIONS = {
    "setManagement": "SET_NODE_POOL_MANAGEMENT",
    "update": "UPGRADE_NODES",
}

_LISTS = {"labels": "labels", "resourceLabels": "labels", "tags": "tags", "taints": "taints"}
"""Fields of an update whose value is wrapped in a message, and the value's name in the message."""

_OF_THE_POOL = {
    "locations": "locations",
    "nodeNetworkConfig": "networkConfig",
    "nodeVersion": "version",
    "queuedProvisioning": "queuedProvisioning",
    "upgradeSettings": "upgradeSettings",
}
"""Fields of an update that belong to the pool, and their names in the pool; all others belong to its nodes."""

_NAMES = frozenset({"clusterId", "etag", "name", "nodePoolId", "projectId", "zone"})


class NodePools(Collection):
    """`projects/p/locations/l/clusters/c/nodePools/n`."""

    kind = POOL
    items = "nodePools"

    def shown(self, call: Call, found: CloudObject) -> Body:
        groups = [one.body["selfLink"] for one in instance_groups.of_pool(call.cloud, found.name)]
        return {**found.body, "instanceGroupUrls": groups, "status": status(call, found.name)}

    def do_list(self, call: Call) -> Body:
        call.cloud.get(CLUSTER, call.name.rpartition("/")[0])
        return super().do_list(call)

    def do_create(self, call: Call) -> Body:
        given = call.body["nodePool"]
        name = f"{call.name}/{given.get('name', '')}"
        call.cloud.get(CLUSTER, name.partition("/nodePools/")[0])
        require_idle(call, name)
        self.make(call, name, given)
        return begin(call, "CREATE_NODE_POOL", name)

    def make(self, call: Call, name: str, given: Mapping[str, Any]) -> None:
        """Make a pool."""
        cluster = call.cloud.get(CLUSTER, name.partition("/nodePools/")[0])
        body = {
            "locations": cluster.body["locations"],
            "management": {"autoRepair": True, "autoUpgrade": True},
            "maxPodsConstraint": cluster.body["defaultMaxPodsConstraint"],
            "selfLink": link(call, name),
            "upgradeSettings": {"maxSurge": 1, "strategy": "SURGE"},
            "version": GKE_VERSION,
            **given,
            "config": {**_NODE, **given.get("config", {})},
        }
        body = self._settled(call, name, body, None)
        call.cloud.create(self.kind, name, body, self._uses(name, body))
        self._place(call, name, body)

    def do_update(self, call: Call) -> Body:
        changed: Body = {}
        config: Body = {}
        for key, value in call.body.items():
            if key in _OF_THE_POOL:
                changed[_OF_THE_POOL[key]] = value
            elif key not in _NAMES:
                config[key] = value.get(_LISTS[key], {}) if key in _LISTS else value
        if not changed and not config:
            raise bad(
                "At least one of ['node_version', 'image_type', 'updated_node_pool', 'locations'] must be specified."
            )
        if "diskSizeGb" in config:
            config["diskSizeGb"] = int(config["diskSizeGb"])
        found = self.found(call)
        return self.changed(call, found, {**changed, "config": {**found.body["config"], **config}})

    def do_set_management(self, call: Call) -> Body:
        return self.changed(call, self.found(call), {"management": call.body["management"]})

    def changed(self, call: Call, found: CloudObject, changes: Mapping[str, Any]) -> Body:
        """Change some of a pool's fields; returns the operation."""
        require_idle(call, found.name)
        body = self._settled(call, found.name, {**found.body, **changes}, found)
        call.cloud.put(self.kind, found.name, body, self._uses(found.name, body))
        self._place(call, found.name, body)
        return begin(call, _OPERATIONS[call.method.name], found.name)

    def admit_removal(self, call: Call, found: CloudObject) -> None:
        require_idle(call, found.name)

    def answer(self, call: Call, found: CloudObject, verb: str) -> Body:
        return begin(call, "DELETE_NODE_POOL", found.name)

    def _place(self, call: Call, name: str, body: Body) -> None:
        """Make a group in each of the pool's zones; a new group starts with the pool's initial number of nodes."""
        sizes, first = instance_groups.sizes(call.cloud, name), int(body.get("initialNodeCount", 0))
        instance_groups.settle(call.cloud, name, {zone: sizes.get(zone, first) for zone in body["locations"]})

    def _settled(self, call: Call, name: str, given: Mapping[str, Any], before: CloudObject | None) -> Body:
        """A whole body as GKE stores it. Raises RefusedCall."""
        body: Body = pruned(given)
        if body["config"].get("flexStart"):
            # Whatever the request says (terraform-google-modules/terraform-google-kubernetes-engine pull request 2352).
            body["upgradeSettings"] = {"strategy": "SHORT_LIVED"}
        admit_pool(call.cloud, body, name, before)
        account = body["config"]["serviceAccount"]
        if account != "default":
            # It may be deleted while nodes run as it; they lose their access ("Delete and undelete service accounts").
            project = account.partition("@")[2].removesuffix(".iam.gserviceaccount.com")
            found = call.cloud.get("iam/serviceAccount", f"projects/{project}/serviceAccounts/{account}")
            if before is None:
                # "Harden your cluster's security", least-privilege accounts: the nodes' creator must be its user.
                require_permission(
                    call, "iam.serviceAccounts.actAs", policies.full_name("iam.googleapis.com", found.name)
                )
        return {**body, "etag": digest(body)}

    def _uses(self, name: str, body: Mapping[str, Any]) -> list[Use]:
        cluster = name.partition("/nodePools/")[0]
        held = [Use(kind=CLUSTER, name=cluster, relation="part-of")]
        for network, subnetwork in pairs_of(cluster, body):
            held += [Use(kind="compute/network", name=network), Use(kind="compute/subnetwork", name=subnetwork)]
        return held
