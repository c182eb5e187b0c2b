"""One stack that keeps all policies, the strict ones too, and for each policy resources that break it."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

from oasis_stack.command_line.offline import Deployment, Registered
from oasis_stack.command_line.stack_file import ROOT
from policies import rules
from policies.rules import Resource
from tests.support.stacks import FULL

STRICT = ROOT / "policies" / "strict.json"

KEPT: dict[str, Any] = {
    **FULL,
    "oasis:labels": {"team": "vision"},
    "oasis:ray": {"dashboard_access": "internal-load-balancer", "dashboard_client_ranges": ["10.0.0.0/8"]},
    "oasis:cost": {"billing_account": "01AB23-4CD567-89EF01", "monthly_usd": 1000},
}
"""A stack file."""

MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
REPOSITORY = "gcp:artifactregistry/repository:Repository"
EVERYBODY_READS = '{"bindings": [{"role": "roles/viewer", "members": ["user:ann@example.com", "allUsers"]}]}'
"""A policy as `policyData` has it."""


@dataclass(frozen=True)
class Break:
    """A resource of that stack with one thing changed, or one beside it."""

    policy: str
    """The only one that refuses it."""
    type: str
    name: str
    path: str = ""
    """What is changed, as `nodeConfig.spot`; empty for a resource that the program does not have."""
    value: Any = None

    def of(self, deployment: Deployment) -> Resource:
        """That resource."""
        if not self.path:
            return Resource(type=self.type, name=self.name, properties=self.value)
        found = recorded(deployment.get(self.type, self.name))
        properties = copy.deepcopy(dict(found.properties))
        *folders, last = self.path.split(".")
        here = properties
        for key in folders:
            here = here.setdefault(key, {})
        here[last] = self.value
        return Resource(type=self.type, name=self.name, properties=properties)


def recorded(found: Registered) -> Resource:
    """As the rules take it."""
    return Resource(type=found.type, name=found.name, properties=found.inputs)


def machine(name: str, **properties: Any) -> dict[str, Any]:
    """A virtual machine."""
    given = {"machineType": name, "labels": {"team": "vision"}, **properties}
    return {"type": rules.MACHINES[0], "name": "mine", "value": given}


IP_ENDPOINT = "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled"
PUBLIC_INTERFACE = [{"network": "network", "accessConfigs": [{}]}]
PUBLIC_ADDRESS, GLOBAL_ADDRESS = rules.ADDRESSES
FORWARDING, GLOBAL_FORWARDING = rules.FORWARDING_RULES
OURS = {"labels": {"team": "vision"}}
H200_CONFIG = {"machineType": "a3-ultragpu-8g", "spot": True, "resourceLabels": {"team": "vision"}}
"""Without `guestAccelerators`, as GKE fills them in by itself."""

BREAKS = (
    Break("private-nodes", rules.NODE_POOL, "cluster-cpu", "networkConfig"),
    Break("private-nodes", rules.CLUSTER, "cluster", "privateClusterConfig.enablePrivateNodes", False),
    Break("closed-control-plane", rules.CLUSTER, "cluster", IP_ENDPOINT, True),
    Break("no-public-address", PUBLIC_ADDRESS, "dashboard", "addressType", "EXTERNAL"),
    Break("no-public-address", rules.SERVICE, "ray", "metadata.annotations"),
    Break(
        "no-public-address", rules.SERVICE, "ray", "spec.loadBalancerClass", "networking.gke.io/l4-regional-external"
    ),
    Break("no-public-address", GLOBAL_ADDRESS, "mine", value=OURS),
    Break("no-public-address", FORWARDING, "mine", value=OURS),
    Break("no-public-address", GLOBAL_FORWARDING, "mine", value=OURS),
    Break("no-public-address", rules.INGRESS, "mine", value={"spec": {}}),
    Break("no-public-address", **machine("e2-standard-8", networkInterfaces=PUBLIC_INTERFACE)),
    Break(
        "no-public-address",
        "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        "mine",
        value={**OURS, "networkInterfaces": PUBLIC_INTERFACE},
    ),
    Break(
        "no-public-address",
        "kubernetes:gateway.networking.k8s.io/v1:Gateway",
        "mine",
        value={"spec": {"gatewayClassName": "gke-l7-global-external-managed"}},
    ),
    Break(
        "no-public-address",
        "kubernetes:core/v1:ServicePatch",
        "mine",
        value={"metadata": {"name": "ray"}, "spec": {"type": "LoadBalancer"}},
    ),
    Break("no-on-demand-h200", rules.NODE_POOL, "gpu-spot", "nodeConfig.spot", False),
    Break("no-on-demand-h200", rules.NODE_POOL, "gpu-flex-start", "nodeConfig.flexStart"),
    Break(
        "no-on-demand-h200",
        rules.NODE_POOL,
        "gpu-reservation-ours",
        "nodeConfig.reservationAffinity.consumeReservationType",
        "ANY_RESERVATION",
    ),
    Break("no-on-demand-h200", **machine("zones/us-central1-b/machineTypes/a3-ultragpu-8g")),
    Break(
        "no-on-demand-h200",
        "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        "mine",
        value={**OURS, "machineType": "a3-ultragpu-8g"},
    ),
    Break("private-data", rules.BUCKET, "runs", "publicAccessPrevention", "inherited"),
    Break("private-data", rules.BUCKET, "build-source", "uniformBucketLevelAccess", False),
    Break("private-data", MEMBER, "identity-runs-objectUser", "member", "allUsers"),
    *(
        Break("private-data", type_, "mine", value=value)
        for type_, value in (
            ("gcp:storage/bucketIAMBinding:BucketIAMBinding", {"members": ["user:a@b.c", "allAuthenticatedUsers"]}),
            ("gcp:storage/bucketIAMPolicy:BucketIAMPolicy", {"policyData": EVERYBODY_READS}),
            ("gcp:projects/iAMPolicy:IAMPolicy", {"policyData": EVERYBODY_READS}),
            ("gcp:storage/bucketAccessControl:BucketAccessControl", {"entity": "allUsers", "role": "READER"}),
            ("gcp:storage/bucketACL:BucketACL", {"roleEntities": ["READER:allUsers"]}),
            ("gcp:bigquery/datasetAccess:DatasetAccess", {"specialGroup": "allAuthenticatedUsers"}),
            ("gcp:bigquery/dataset:Dataset", {"accesses": [{"specialGroup": "allAuthenticatedUsers"}]}),
        )
    ),
    Break("bounded-pools", rules.NODE_POOL, "gpu-reservation-ours", "autoscaling"),
    Break("bounded-pools", rules.CLUSTER, "cluster", "removeDefaultNodePool", False),
    Break("bounded-pools", rules.CLUSTER, "cluster", "clusterAutoscaling.enabled", True),
    Break("bounded-pools", rules.COMPUTE_CLASS, "gpu-class", "spec.nodePoolAutoCreation.enabled", True),
    Break("same-labels", rules.NODE_POOL, "cluster-system", "nodeConfig.resourceLabels.team", "x"),
    Break("same-labels", rules.BUCKET, "build-source", "labels.team", "x"),
    Break("data-is-kept", rules.BUCKET, "data", "forceDestroy", True),
    Break("data-is-kept", rules.BUCKET, "data", "softDeletePolicy"),
    Break("gpu-nodes", rules.NODE_POOL, "gpu-flex-start", "autoscaling.totalMaxNodeCount", 9),
    Break(
        "gpu-nodes",
        rules.CLUSTER,
        "cluster",
        "nodePools",
        [{"name": "mine", "nodeConfig": H200_CONFIG, "autoscaling": {"totalMaxNodeCount": 9}}],
    ),
    Break(
        "gpu-nodes",
        rules.NODE_POOL,
        "mine",
        value={
            "nodeConfig": H200_CONFIG,
            "networkConfig": {"enablePrivateNodes": True},
            "autoscaling": {"maxNodeCount": 3},
        },
    ),
    Break("required-labels", rules.CLUSTER, "cluster", "resourceLabels"),
    Break("budget", rules.BUDGET, "budget", "thresholdRules"),
)
"""For each policy; the first one of each says what it is about."""


def settings(policy: str) -> dict[str, Any]:
    """What `policies/strict.json` gives to a policy, but for its level."""
    given = json.loads(STRICT.read_text()).get(policy, {})
    return {key: value for key, value in given.items() if key != "enforcementLevel"} if isinstance(given, dict) else {}
