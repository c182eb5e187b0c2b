"""What the policies say, in terms of Pulumi's types and properties. Pure, and of the standard library alone.

Every stack that the settings allow passes the mandatory ones (`tests/policies/test_rules.py`): they hold what the
program must never come to do, by an edit or beside it. The others are advice until the pack's configuration makes them
mandatory. Where a comment names a page of the Pulumi SDK, that is pulumi-gcp 10.2.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Properties = Mapping[str, Any]

CLUSTER = "gcp:container/cluster:Cluster"
NODE_POOL = "gcp:container/nodePool:NodePool"
BUCKET = "gcp:storage/bucket:Bucket"
BUDGET = "gcp:billing/budget:Budget"
ADDRESSES = ("gcp:compute/address:Address", "gcp:compute/globalAddress:GlobalAddress")
FORWARDING_RULES = (
    "gcp:compute/forwardingRule:ForwardingRule",
    "gcp:compute/globalForwardingRule:GlobalForwardingRule",
)
MACHINES = (
    "gcp:compute/instance:Instance",
    "gcp:compute/instanceTemplate:InstanceTemplate",
    "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
    "gcp:compute/instanceFromTemplate:InstanceFromTemplate",
    "gcp:compute/instanceFromMachineImage:InstanceFromMachineImage",
)
SERVICE = "kubernetes:core/v1:Service"
SERVICES = (SERVICE, f"{SERVICE}Patch")
INGRESS = "kubernetes:networking.k8s.io/v1:Ingress"
GATEWAYS = tuple(f"kubernetes:gateway.networking.k8s.io/{version}:Gateway" for version in ("v1", "v1beta1"))
INTERNAL_GATEWAYS = ("gke-l7-rilb", "gke-l7-rilb-mc", "gke-l7-cross-regional-internal-managed-mc")
"""GKE's Gateway classes without a public address (GKE documentation, "About Gateway API", "GatewayClass")."""

COMPUTE_CLASS = "kubernetes:cloud.google.com/v1:ComputeClass"

LABELS = {
    CLUSTER: "resourceLabels",
    NODE_POOL: "nodeConfig.resourceLabels",
    BUCKET: "labels",
    "gcp:artifactregistry/repository:Repository": "labels",
    "gcp:secretmanager/secret:Secret": "labels",
    **dict.fromkeys((*ADDRESSES, *FORWARDING_RULES, *MACHINES), "labels"),
    "gcp:compute/disk:Disk": "labels",
}
"""Where the labels of a type stand, of those that take some and that a bill names."""

H200_MACHINES, H200 = "a3-ultragpu-", "nvidia-h200-141gb"
"""Machine types with H200 GPUs, and those GPUs (Compute Engine documentation, "GPU machine types")."""

GPU_MACHINES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
"""Machine series that come with GPUs, also where a pool names none (likewise)."""

WIDEST_PREFIX = 8
"""A network wider than this is the internet by another name, as in `oasis_stack/settings/rules.py`."""

GRANTS = ("member", "members", "policyData", "entity", "roleEntities", "specialGroup", "iamMember", "accesses")
"""Where a resource says who gets a right (SDK: IAM members, bindings and policies of all services; storage,
BucketAccessControl and BucketACL; bigquery, DatasetAccess and Dataset)."""

EVERYBODY = ("allUsers", "allAuthenticatedUsers")
"""Anyone on the internet, and anyone with a Google account (IAM documentation, "Principal identifiers")."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource: as the program asks for it, or, for a rule of the whole stack, as it came out."""

    type: str
    name: str
    """The logical name, which is Pulumi's own."""
    properties: Properties


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What both kinds of policies have."""

    name: str
    meaning: str
    """One line, which Pulumi shows above each violation."""
    mandatory: bool
    """Whether a violation ends the run; else it is a line of advice until the pack's configuration says so."""
    settings: Mapping[str, Properties] = field(default_factory=dict)
    """Keys of its own in the pack's configuration: a JSON schema with a default for each."""

    def configured(self, given: Properties) -> dict[str, Any]:
        """Its settings: as given, or by default."""
        return {key: given.get(key, schema["default"]) for key, schema in self.settings.items()}


@dataclass(frozen=True, kw_only=True)
class ResourceRule(Rule):
    """A policy that looks at one resource, before it is made or changed."""

    check: Callable[[Resource, Properties], Iterator[str]]
    """What is wrong with a resource, under these settings."""


@dataclass(frozen=True, kw_only=True)
class StackRule(Rule):
    """A policy that looks at all resources of a stack, at the end of a preview or an update."""

    check: Callable[[Sequence[Resource], Properties], Iterator[str]]
    """What is wrong with the stack, under these settings."""


def at(properties: Any, path: str) -> Any:
    """What stands at `nodeConfig.spot`; None where nothing does."""
    for key in path.split("."):
        properties = properties.get(key) if isinstance(properties, Mapping) else None
    return properties


def labels(resource: Resource) -> dict[str, str]:
    """A resource's labels, but for those that Google and Pulumi add."""
    # One that was taken over has none of its own, but what was found on it (SDK: `effective_labels` of any type).
    found = at(resource.properties, LABELS[resource.type]) or at(resource.properties, "effectiveLabels") or {}
    return {key: value for key, value in found.items() if not key.startswith("goog")}


def pools(resource: Resource) -> Iterator[Properties]:
    """The node pools that a resource makes: a pool, or a cluster's own, of which the first one comes by default."""
    if resource.type == NODE_POOL:
        yield resource.properties
    if resource.type == CLUSTER:
        yield from at(resource.properties, "nodePools") or ()
        if not at(resource.properties, "removeDefaultNodePool"):
            yield {"nodeConfig": at(resource.properties, "nodeConfig")}


def most_nodes(pool: Properties) -> int | None:
    """The nodes that a pool has at most; None where nothing says it."""
    # A fixed size and the other maximum are of one zone (SDK: container, NodePool and NodePoolAutoscaling); a region's
    # pool is in three unless it says otherwise (GKE documentation, "Regional clusters").
    zones = len(at(pool, "nodeLocations") or ()) or 3
    if total := at(pool, "autoscaling.totalMaxNodeCount"):
        return int(total)
    fixed = at(pool, "autoscaling") is None
    each = at(pool, "nodeCount") if fixed else at(pool, "autoscaling.maxNodeCount") or None
    return None if each is None else int(each) * zones


def has_gpus(pool: Properties) -> bool:
    """Whether a pool's nodes have GPUs."""
    machine = str(at(pool, "nodeConfig.machineType"))
    return bool(at(pool, "nodeConfig.guestAccelerators")) or machine.startswith(GPU_MACHINES)


def texts(value: Any) -> Iterator[str]:
    """All texts in a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts(list(value.values()))
    elif isinstance(value, Sequence):
        for one in value:
            yield from texts(one)


def private_nodes(resource: Resource, _: Properties) -> Iterator[str]:
    # Without the flag nodes get an external address each (SDK: container, NodePoolNetworkConfig and
    # ClusterPrivateClusterConfig, `enable_private_nodes`).
    if resource.type == CLUSTER and at(resource.properties, "privateClusterConfig.enablePrivateNodes") is not True:
        yield "the cluster's nodes get public addresses: set private_cluster_config.enable_private_nodes"
    if resource.type == NODE_POOL and at(resource.properties, "networkConfig.enablePrivateNodes") is not True:
        yield "nothing says that the pool's nodes are private: set network_config.enable_private_nodes"


def closed_control_plane(resource: Resource, _: Properties) -> Iterator[str]:
    # Three ways to close it: no IP endpoints, none that is public, or authorised networks (SDK: container,
    # ClusterControlPlaneEndpointsConfig, ClusterPrivateClusterConfig and ClusterMasterAuthorizedNetworksConfig).
    if resource.type != CLUSTER:
        return
    if at(resource.properties, "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled") is False:
        return
    if at(resource.properties, "privateClusterConfig.enablePrivateEndpoint") is True:
        return
    networks = at(resource.properties, "masterAuthorizedNetworksConfig")
    if networks is None:
        yield "the control plane's address answers the whole internet: turn it off, or name authorised networks"
    elif at(networks, "gcpPublicCidrsAccessEnabled") is not False:
        yield "the control plane's address answers every machine of Google Cloud: gcp_public_cidrs_access_enabled"
    for block in at(networks, "cidrBlocks") or ():
        prefix = str(at(block, "cidrBlock")).rpartition("/")[2]
        if prefix.isdecimal() and int(prefix) < WIDEST_PREFIX:
            wide = f"{at(block, 'cidrBlock')} is authorised, which is wider than /{WIDEST_PREFIX}"
            yield f"the control plane's address answers much of the internet: {wide}"


def no_public_address(resource: Resource, _: Properties) -> Iterator[str]:
    # Of Cloud Build's workers, which the settings allow, nothing is said: their addresses lead out, and are Google's.
    here = resource.properties
    # External unless it says otherwise (SDK: compute, Address, GlobalAddress, ForwardingRule, GlobalForwardingRule).
    if resource.type in ADDRESSES and at(here, "addressType") != "INTERNAL":
        yield "it reserves a public address; the way out is Cloud NAT, whose addresses are its own"
    if resource.type in FORWARDING_RULES and not str(at(here, "loadBalancingScheme") or "").startswith("INTERNAL"):
        yield "it is a load balancer with a public address: set load_balancing_scheme to an internal one"
    if resource.type in MACHINES:
        # SDK: compute, InstanceNetworkInterface: an empty block asks for an ephemeral address, no block for none.
        for interface in at(here, "networkInterfaces") or ():
            if at(interface, "accessConfigs") or at(interface, "ipv6AccessConfigs"):
                yield "the machine has a public address: leave access_configs out"
    annotations = at(here, "metadata.annotations") or {}
    # GKE documentation, "About LoadBalancer Services": external is the default; the class, if there is one, decides
    # (kubernetes/ingress-gce, `IsSubsettingL4ILBService`).
    balanced = resource.type in SERVICES and at(here, "spec.type") == "LoadBalancer"
    wanted = at(here, "spec.loadBalancerClass") or annotations.get("networking.gke.io/load-balancer-type")
    if balanced and wanted not in ("Internal", "networking.gke.io/l4-regional-internal"):
        yield "the Service gets a public address: annotate it networking.gke.io/load-balancer-type: Internal"
    # GKE documentation, "GKE Ingress for Application Load Balancers": so it is here.
    if resource.type == INGRESS and annotations.get("kubernetes.io/ingress.class") != "gce-internal":
        yield "the Ingress gets a public address: annotate it kubernetes.io/ingress.class: gce-internal"
    if resource.type in GATEWAYS and at(here, "spec.gatewayClassName") not in INTERNAL_GATEWAYS:
        yield f"the Gateway gets a public address: set gatewayClassName to one of {', '.join(INTERNAL_GATEWAYS)}"


def no_on_demand_h200(resource: Resource, _: Properties) -> Iterator[str]:
    remedy = "a reservation of one's own, flex-start, Spot or queued provisioning"
    for pool in pools(resource):
        config = at(pool, "nodeConfig")
        gpus = [at(gpu, "type") for gpu in at(config, "guestAccelerators") or ()]
        if not str(at(config, "machineType")).startswith(H200_MACHINES) and H200 not in gpus:
            continue
        # ANY_RESERVATION falls back to on-demand (SDK: container, NodePoolNodeConfigReservationAffinity).
        reserved = at(config, "reservationAffinity.consumeReservationType") == "SPECIFIC_RESERVATION"
        queued = at(pool, "queuedProvisioning.enabled")
        if not (reserved or queued or at(config, "flexStart") or at(config, "spot")):
            yield f"the pool buys H200 nodes on demand, or waits for what Google does not sell so: it needs {remedy}"
    if resource.type in MACHINES:
        machine = str(at(resource.properties, "machineType")).rpartition("/")[2]
        # The other model, STANDARD, is on demand where no reservation is named (SDK: compute, InstanceScheduling and
        # InstanceReservationAffinity).
        reserved = at(resource.properties, "reservationAffinity.type") == "SPECIFIC_RESERVATION"
        model = at(resource.properties, "scheduling.provisioningModel")
        sold = reserved or model in ("SPOT", "FLEX_START", "RESERVATION_BOUND")
        if machine.startswith(H200_MACHINES) and not sold:
            yield f"the machine buys H200 GPUs on demand: it needs {remedy}"


def private_data(resource: Resource, _: Properties) -> Iterator[str]:
    if resource.type == BUCKET:
        # Cloud Storage documentation, "Public access prevention" and "Uniform bucket-level access".
        if at(resource.properties, "publicAccessPrevention") != "enforced":
            yield "its objects can be made public: set public_access_prevention to enforced"
        if at(resource.properties, "uniformBucketLevelAccess") is not True:
            yield "an object can have readers of its own: set uniform_bucket_level_access"
    if resource.type.startswith("gcp:"):
        granted = " ".join(texts([at(resource.properties, key) for key in GRANTS]))
        for member in EVERYBODY:
            if member in re.findall(r"[\w.@-]+", granted):
                yield f"it gives rights to {member}, who is anybody: name who needs them"


def bounded_pools(resource: Resource, _: Properties) -> Iterator[str]:
    for pool in pools(resource):
        if most_nodes(pool) is None:
            yield "a node pool has no maximum: set autoscaling.total_max_node_count"
    # GKE documentation, "About node pool auto-creation": such pools are GKE's, and nothing here sees them.
    automatic = at(resource.properties, "clusterAutoscaling.enabled") or at(resource.properties, "enableAutopilot")
    if resource.type == CLUSTER and automatic:
        yield "GKE makes node pools of its own: leave out cluster_autoscaling and enable_autopilot"
    if resource.type == COMPUTE_CLASS and at(resource.properties, "spec.nodePoolAutoCreation.enabled"):
        yield "GKE makes node pools of its own for this class: leave out nodePoolAutoCreation"


def same_labels(resources: Sequence[Resource], _: Properties) -> Iterator[str]:
    clusters = [labels(resource) for resource in resources if resource.type == CLUSTER]
    for resource in resources:
        if resource.type in LABELS:
            missing = sorted({key for wanted in clusters for key, _ in wanted.items() - labels(resource).items()})
            if missing:
                yield f"{resource.name} ({resource.type}) lacks the cluster's labels {', '.join(missing)}"


def data_is_kept(resource: Resource, settings: Properties) -> Iterator[str]:
    if resource.type != BUCKET or resource.name not in settings["buckets"]:
        return
    if at(resource.properties, "forceDestroy"):
        yield "`pulumi destroy` deletes the bucket with all that is in it: set keep: true in its section"
    # Cloud Storage documentation, "Soft delete": 0 turns it off.
    seconds, least = at(resource.properties, "softDeletePolicy.retentionDurationSeconds"), settings["softDeleteDays"]
    days = (seconds or 0) / 86400
    if days < least:
        yield f"a deleted object can be restored for {days:g} days, and softDeleteDays is {least:g}"


def gpu_nodes(resources: Sequence[Resource], settings: Properties) -> Iterator[str]:
    # By the pool's own name, as a cluster that is there lists all of its pools (SDK: container, Cluster, `node_pools`).
    nodes = {
        at(pool, "name") or f"{resource.name} {number}": most_nodes(pool) or 0
        for resource in resources
        for number, pool in enumerate(pools(resource), 1)
        if has_gpus(pool)
    }
    if sum(nodes.values()) > settings["maxNodes"]:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(nodes.items()))
        yield f"up to {sum(nodes.values())} GPU nodes ({listed}), and maxNodes is {settings['maxNodes']:g}"


def required_labels(resources: Sequence[Resource], settings: Properties) -> Iterator[str]:
    for key in settings["keys"]:
        without = sorted({one.name for one in resources if one.type in LABELS and key not in labels(one)})
        if without:
            yield f"the label {key} is missing: {', '.join(without)}; set it in oasis:labels"


def budget(resources: Sequence[Resource], _: Properties) -> Iterator[str]:
    if not any(one.type == BUDGET and at(one.properties, "thresholdRules") for one in resources):
        yield "no budget tells what is spent: set billing_account and monthly_usd in oasis:cost"


RULES: tuple[ResourceRule | StackRule, ...] = (
    ResourceRule(name="private-nodes", meaning="Nodes have no public address.", mandatory=True, check=private_nodes),
    ResourceRule(
        name="closed-control-plane",
        meaning="The control plane's address, if it has a public one, answers named networks alone.",
        mandatory=True,
        check=closed_control_plane,
    ),
    ResourceRule(
        name="no-public-address",
        meaning="Nothing is reached from the internet, and nothing but Cloud NAT has an address there.",
        mandatory=True,
        check=no_public_address,
    ),
    ResourceRule(
        name="no-on-demand-h200", meaning="No H200 is bought on demand.", mandatory=True, check=no_on_demand_h200
    ),
    ResourceRule(
        name="private-data",
        meaning="Buckets cannot be made public, and nothing is.",
        mandatory=True,
        check=private_data,
    ),
    ResourceRule(name="bounded-pools", meaning="Each node pool has a maximum.", mandatory=True, check=bounded_pools),
    StackRule(
        name="same-labels",
        meaning="Whatever takes labels carries the cluster's, which are the stack's.",
        mandatory=True,
        check=same_labels,
    ),
    ResourceRule(
        name="data-is-kept",
        meaning="A destroy keeps the data, and what was deleted by mistake comes back.",
        mandatory=False,
        check=data_is_kept,
        settings={
            "buckets": {"type": "array", "items": {"type": "string"}, "default": ["data", "runs"]},
            "softDeleteDays": {"type": "number", "minimum": 0, "maximum": 90, "default": 7},
        },
    ),
    StackRule(
        name="gpu-nodes",
        meaning="There is a most of GPU nodes, of all pools together.",
        mandatory=False,
        check=gpu_nodes,
        settings={"maxNodes": {"type": "integer", "minimum": 0, "default": 0}},
    ),
    StackRule(
        name="required-labels",
        meaning="Whatever takes labels has those by which the bill is divided.",
        mandatory=False,
        check=required_labels,
        settings={"keys": {"type": "array", "items": {"type": "string"}, "default": ["team"]}},
    ),
    StackRule(name="budget", meaning="The stack has a budget.", mandatory=False, check=budget),
)
"""All policies, in the order of the table in docs/cloud.md."""
