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


@dataclass(frozen=True, kw_only=True)
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
    Break(policy="private-nodes", type=rules.NODE_POOL, name="cluster-cpu", path="networkConfig"),
    Break(
        policy="private-nodes",
        type=rules.CLUSTER,
        name="cluster",
        path="privateClusterConfig.enablePrivateNodes",
        value=False,
    ),
    Break(policy="closed-control-plane", type=rules.CLUSTER, name="cluster", path=IP_ENDPOINT, value=True),
    Break(policy="no-public-address", type=PUBLIC_ADDRESS, name="dashboard", path="addressType", value="EXTERNAL"),
    Break(policy="no-public-address", type=rules.SERVICE, name="ray", path="metadata.annotations"),
    Break(
        policy="no-public-address",
        type=rules.SERVICE,
        name="ray",
        path="spec.loadBalancerClass",
        value="networking.gke.io/l4-regional-external",
    ),
    Break(policy="no-public-address", type=GLOBAL_ADDRESS, name="mine", value=OURS),
    Break(policy="no-public-address", type=FORWARDING, name="mine", value=OURS),
    Break(policy="no-public-address", type=GLOBAL_FORWARDING, name="mine", value=OURS),
    Break(policy="no-public-address", type=rules.INGRESS, name="mine", value={"spec": {}}),
    Break(policy="no-public-address", **machine("e2-standard-8", networkInterfaces=PUBLIC_INTERFACE)),
    Break(
        policy="no-public-address",
        type="gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        name="mine",
        value={**OURS, "networkInterfaces": PUBLIC_INTERFACE},
    ),
    Break(
        policy="no-public-address",
        type="kubernetes:gateway.networking.k8s.io/v1:Gateway",
        name="mine",
        value={"spec": {"gatewayClassName": "gke-l7-global-external-managed"}},
    ),
    Break(
        policy="no-public-address",
        type="kubernetes:core/v1:ServicePatch",
        name="mine",
        value={"metadata": {"name": "ray"}, "spec": {"type": "LoadBalancer"}},
    ),
    Break(policy="no-on-demand-h200", type=rules.NODE_POOL, name="gpu-spot", path="nodeConfig.spot", value=False),
    Break(policy="no-on-demand-h200", type=rules.NODE_POOL, name="gpu-flex-start", path="nodeConfig.flexStart"),
    Break(
        policy="no-on-demand-h200",
        type=rules.NODE_POOL,
        name="gpu-reservation-ours",
        path="nodeConfig.reservationAffinity.consumeReservationType",
        value="ANY_RESERVATION",
    ),
    Break(policy="no-on-demand-h200", **machine("zones/us-central1-b/machineTypes/a3-ultragpu-8g")),
    Break(
        policy="no-on-demand-h200",
        type="gcp:compute/instanceFromTemplate:InstanceFromTemplate",
        name="mine",
        value={**OURS, "machineType": "a3-ultragpu-8g"},
    ),
    Break(policy="private-data", type=rules.BUCKET, name="runs", path="publicAccessPrevention", value="inherited"),
    Break(policy="private-data", type=rules.BUCKET, name="build-source", path="uniformBucketLevelAccess", value=False),
    Break(policy="private-data", type=MEMBER, name="identity-runs-objectUser", path="member", value="allUsers"),
    Break(
        policy="private-data",
        type=MEMBER.replace("Member", "Binding").replace("IAMM", "IAMB"),
        name="mine",
        value={"bucket": "runs", "members": ["user:ann@example.com", "allAuthenticatedUsers"]},
    ),
    *(
        Break(policy="private-data", type=type_, name="mine", value=value)
        for type_, value in (
            ("gcp:storage/bucketIAMPolicy:BucketIAMPolicy", {"policyData": EVERYBODY_READS}),
            ("gcp:projects/iAMPolicy:IAMPolicy", {"policyData": EVERYBODY_READS}),
            ("gcp:storage/bucketAccessControl:BucketAccessControl", {"entity": "allUsers", "role": "READER"}),
            ("gcp:storage/bucketACL:BucketACL", {"roleEntities": ["READER:allUsers"]}),
            ("gcp:bigquery/datasetAccess:DatasetAccess", {"specialGroup": "allAuthenticatedUsers"}),
            ("gcp:bigquery/dataset:Dataset", {"accesses": [{"specialGroup": "allAuthenticatedUsers"}]}),
        )
    ),
    Break(policy="bounded-pools", type=rules.NODE_POOL, name="gpu-reservation-ours", path="autoscaling"),
    Break(policy="bounded-pools", type=rules.CLUSTER, name="cluster", path="removeDefaultNodePool", value=False),
    Break(policy="bounded-pools", type=rules.CLUSTER, name="cluster", path="clusterAutoscaling.enabled", value=True),
    Break(
        policy="bounded-pools",
        type=rules.COMPUTE_CLASS,
        name="gpu-class",
        path="spec.nodePoolAutoCreation.enabled",
        value=True,
    ),
    Break(
        policy="same-labels",
        type=rules.NODE_POOL,
        name="cluster-system",
        path="nodeConfig.resourceLabels.team",
        value="x",
    ),
    Break(policy="same-labels", type=rules.BUCKET, name="build-source", path="labels.team", value="x"),
    Break(policy="data-is-kept", type=rules.BUCKET, name="data", path="forceDestroy", value=True),
    Break(policy="data-is-kept", type=rules.BUCKET, name="data", path="softDeletePolicy"),
    Break(
        policy="gpu-nodes", type=rules.NODE_POOL, name="gpu-flex-start", path="autoscaling.totalMaxNodeCount", value=9
    ),
    Break(
        policy="gpu-nodes",
        type=rules.CLUSTER,
        name="cluster",
        path="nodePools",
        value=[{"name": "mine", "nodeConfig": H200_CONFIG, "autoscaling": {"totalMaxNodeCount": 9}}],
    ),
    Break(
        policy="gpu-nodes",
        type=rules.NODE_POOL,
        name="mine",
        value={
            "nodeConfig": H200_CONFIG,
            "networkConfig": {"enablePrivateNodes": True},
            "autoscaling": {"maxNodeCount": 3},
        },
    ),
    Break(policy="required-labels", type=rules.CLUSTER, name="cluster", path="resourceLabels"),
    Break(policy="budget", type=rules.BUDGET, name="budget", path="thresholdRules"),
)
"""For each policy; the first one of each says what it is about."""


def settings(policy: str) -> dict[str, Any]:
    """What `policies/strict.json` gives to a policy, but for its level."""
    given = json.loads(STRICT.read_text()).get(policy, {})
    return {key: value for key, value in given.items() if key != "enforcementLevel"} if isinstance(given, dict) else {}
