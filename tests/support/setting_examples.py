"""For every setting, a value that is not its default and where that value must turn up: the resource it names.

Values are as different from each other as they can be, so that all may be set at once and two crossed wires still show.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

from oasis_stack.facts.problem import config_key
from tests.support.stacks import changed

CLUSTER = ("gcp:container/cluster:Cluster", "cluster")
SYSTEM_POOL = ("gcp:container/nodePool:NodePool", "cluster-system")
CPU_POOL = ("gcp:container/nodePool:NodePool", "cluster-cpu")
RAY = ("kubernetes:ray.io/v1:RayCluster", "ray")
KUEUE = ("kubernetes:helm.sh/v3:Release", "kueue")
CLASS = ("kubernetes:cloud.google.com/v1:ComputeClass", "gpu-class")
DASHBOARD = ("kubernetes:core/v1:Service", "ray")
IMAGES = ("gcp:artifactregistry/repository:Repository", "registry-docker")
MIRROR = ("gcp:artifactregistry/repository:Repository", "registry-docker-remote")
WORKERS = ("gcp:cloudbuild/workerPool:WorkerPool", "build")
SECRET = ("gcp:secretmanager/secret:Secret", "wandb")
SUBNET = ("gcp:compute/subnetwork:Subnetwork", "network-nodes")
GPU_POOL = "gcp:container/nodePool:NodePool"
BUCKET = "gcp:storage/bucket:Bucket"

BUDGET = ("gcp:billing/budget:Budget", "budget")

TEAM = ("kubernetes:kueue.x-k8s.io/v1beta2:ClusterQueue", "team-vision")
TEAM_GPUS = "spec.resourceGroups[0].flavors[1].resources[2]"

KMS_KEY = "projects/keys-project/locations/us-east4/keyRings/ring/cryptoKeys/secrets"
BILLING_ACCOUNT = "01AB23-4CD567-89EF01"
HUB_TOKEN = "projects/keys-project/secrets/docker-hub/versions/3"
IMAGE = "us-east4-docker.pkg.dev/my-project/mine-docker/ray@sha256:" + "0a" * 32
CPU_GROUP, GPU_GROUP = "spec.workerGroupSpecs[0]", "spec.workerGroupSpecs[1]"

_LOGIN = "remoteRepositoryConfig.upstreamCredentials.usernamePasswordCredentials"


class Example(NamedTuple):
    """One setting, changed."""

    value: object
    """What the stack file says."""
    resource: tuple[str, str]
    """Type and logical name of a resource that must show it."""
    path: str
    """Where in its inputs; `@retain_on_delete` and the like are its options."""
    shown: object
    """What stands there."""


def _request(group: str, resource: str) -> str:
    return f"{group}.template.spec.containers[0].resources.requests.{resource}"


EXAMPLES: dict[str, Example] = {
    "project": Example("my-project", CLUSTER, "project", "my-project"),
    "region": Example("us-east4", CLUSTER, "location", "us-east4"),
    "zone": Example("us-east4-b", (GPU_POOL, "gpu-spot"), "nodeLocations[0]", "us-east4-b"),
    "name": Example("mine", (BUCKET, "data"), "name", "my-project-mine-data"),
    "labels": Example({"team": "vision"}, CLUSTER, "resourceLabels.team", "vision"),
    "network.primary_block": Example("10.48.0.0/16", SUBNET, "ipCidrRange", "10.48.0.0/18"),
    "network.pods_block": Example("10.52.0.0/14", SUBNET, "secondaryIpRanges[0].ipCidrRange", "10.52.0.0/14"),
    "network.device_block": Example(
        *("172.18.0.0/15", ("gcp:compute/subnetwork:Subnetwork", "rdma-rdma-7"), "ipCidrRange", "172.19.0.0/19")
    ),
    "network.proxy_only": Example(
        *(True, ("gcp:compute/subnetwork:Subnetwork", "network-proxies"), "ipCidrRange", "10.48.80.0/23")
    ),
    "cluster.release_channel": Example("RAPID", CLUSTER, "releaseChannel.channel", "RAPID"),
    "cluster.minimum_version": Example("1.36.4", CLUSTER, "minMasterVersion", "1.36.4"),
    "cluster.endpoint": Example("ip", CLUSTER, "controlPlaneEndpointsConfig.ipEndpointsConfig.enabled", True),
    "cluster.authorized_networks[0].name": Example(
        *("office", CLUSTER, "masterAuthorizedNetworksConfig.cidrBlocks[0].displayName", "office")
    ),
    "cluster.authorized_networks[0].cidr": Example(
        *("203.0.113.0/24", CLUSTER, "masterAuthorizedNetworksConfig.cidrBlocks[0].cidrBlock", "203.0.113.0/24")
    ),
    "cluster.maintenance_exclusion.start": Example(
        *("2027-01-01T00:00:00Z", CLUSTER, "maintenancePolicy.maintenanceExclusions[0].startTime"),
        "2027-01-01T00:00:00Z",
    ),
    "cluster.maintenance_exclusion.end": Example(
        *("2027-03-01T00:00:00Z", CLUSTER, "maintenancePolicy.maintenanceExclusions[0].endTime"),
        "2027-03-01T00:00:00Z",
    ),
    "cluster.system_pool.machine_type": Example(
        *("n2-standard-32", SYSTEM_POOL, "nodeConfig.machineType", "n2-standard-32")
    ),
    "cluster.system_pool.min_nodes": Example(2, SYSTEM_POOL, "autoscaling.totalMinNodeCount", 2),
    "cluster.system_pool.max_nodes": Example(6, SYSTEM_POOL, "autoscaling.totalMaxNodeCount", 6),
    "cluster.cpu_pool.machine_type": Example("n2d-highmem-16", CPU_POOL, "nodeConfig.machineType", "n2d-highmem-16"),
    "cluster.cpu_pool.min_nodes": Example(1, CPU_POOL, "autoscaling.totalMinNodeCount", 1),
    "cluster.cpu_pool.max_nodes": Example(13, CPU_POOL, "autoscaling.totalMaxNodeCount", 13),
    "cluster.deletion_protection": Example(True, CLUSTER, "deletionProtection", True),
    "cluster.secrets_encryption_key": Example(KMS_KEY, CLUSTER, "databaseEncryption.keyName", KMS_KEY),
    "cluster.security_group": Example(
        *("gke-security-groups@example.com", CLUSTER, "authenticatorGroupsConfig.securityGroup"),
        "gke-security-groups@example.com",
    ),
    "gpu.capacity[0].mode": Example(
        *("reservation", (GPU_POOL, "gpu-reservation-theirs"), "nodeConfig.reservationAffinity.consumeReservationType"),
        "SPECIFIC_RESERVATION",
    ),
    "gpu.capacity[0].max_nodes": Example(
        *(7, (GPU_POOL, "gpu-reservation-theirs"), "autoscaling.totalMaxNodeCount", 7)
    ),
    "gpu.capacity[0].max_run_duration_hours": Example(
        *(24, (GPU_POOL, "gpu-flex-start-24h"), "nodeConfig.maxRunDuration", "86400s")
    ),
    "gpu.capacity[0].reservation": Example(
        *("theirs", (GPU_POOL, "gpu-reservation-theirs"), "nodeConfig.reservationAffinity.values[0]", "theirs")
    ),
    "gpu.capacity[0].compact_placement": Example(
        *(True, (GPU_POOL, "gpu-reservation-theirs"), "placementPolicy.type", "COMPACT")
    ),
    "gpu.machine_type": Example(
        *("g2-standard-12", (GPU_POOL, "gpu-spot"), "nodeConfig.machineType", "g2-standard-12")
    ),
    "gpu.consolidation_delay_minutes": Example(33, CLASS, "spec.autoscalingPolicy.consolidationDelayMinutes", 33),
    "gpu.driver_version": Example(
        *("DEFAULT", (GPU_POOL, "gpu-spot"), "nodeConfig.guestAccelerators[0].gpuDriverInstallationConfig"),
        {"gpuDriverVersion": "DEFAULT"},
    ),
    "gpu.compute_class": Example("big", CLASS, "metadata.name", "big"),
    "gpu.queue_chart": Example(
        *("oci://charts.example/kueue", KUEUE, "chart", "oci://charts.example/kueue"),
    ),
    "ray.namespace": Example("training", RAY, "metadata.namespace", "training"),
    "ray.cluster_name": Example("ours", RAY, "metadata.name", "ours"),
    "ray.version": Example("2.61.0", RAY, "spec.rayVersion", "2.61.0"),
    "ray.image": Example(IMAGE, RAY, "spec.headGroupSpec.template.spec.containers[0].image", IMAGE),
    "ray.operator_repository": Example(
        *("https://charts.example/", ("kubernetes:helm.sh/v3:Release", "kuberay"), "repositoryOpts.repo"),
        "https://charts.example/",
    ),
    "ray.idle_timeout_seconds": Example(777, RAY, "spec.autoscalerOptions.idleTimeoutSeconds", 777),
    "ray.dashboard_access": Example("internal-load-balancer", DASHBOARD, "spec.type", "LoadBalancer"),
    "ray.dashboard_port": Example(9443, DASHBOARD, "spec.ports[0].port", 9443),
    "ray.dashboard_client_ranges": Example(
        ["192.168.7.0/24"], DASHBOARD, "spec.loadBalancerSourceRanges[0]", "192.168.7.0/24"
    ),
    "ray.cpu_workers_max": Example(11, RAY, f"{CPU_GROUP}.maxReplicas", 11),
    "ray.cpu_worker.cpus": Example(9, RAY, _request(CPU_GROUP, "cpu"), "9"),
    "ray.cpu_worker.memory_gb": Example(45, RAY, _request(CPU_GROUP, "memory"), "45Gi"),
    "ray.head.cpus": Example(12, RAY, _request("spec.headGroupSpec", "cpu"), "12"),
    "ray.head.memory_gb": Example(57, RAY, _request("spec.headGroupSpec", "memory"), "57Gi"),
    "teams[0].name": Example("vision", ("kubernetes:core/v1:Namespace", "vision"), "metadata.name", "vision"),
    "teams[0].gpu_nodes": Example(2, TEAM, f"{TEAM_GPUS}.nominalQuota", "16"),
    "teams[0].max_gpu_nodes": Example(3, TEAM, f"{TEAM_GPUS}.borrowingLimit", "8"),
    "teams[0].priority": Example(7, ("kubernetes:kueue.x-k8s.io/v1beta2:WorkloadPriorityClass", TEAM[1]), "value", 7),
    "teams[0].members": Example(
        *(["user:vision@example.com"], ("kubernetes:rbac.authorization.k8s.io/v1:RoleBinding", "vision")),
        *("subjects[0].name", "vision@example.com"),
    ),
    "data.keep": Example(False, (BUCKET, "data"), "@retain_on_delete", False),
    "data.adopt": Example(True, (BUCKET, "data"), "@import_id", "my-project/my-project-mine-data"),
    "data.soft_delete_days": Example(0, (BUCKET, "data"), "softDeletePolicy.retentionDurationSeconds", 0),
    "runs.keep": Example(False, (BUCKET, "runs"), "@retain_on_delete", False),
    "runs.adopt": Example(True, (BUCKET, "runs"), "@import_id", "my-project/my-project-mine-runs"),
    "runs.soft_delete_days": Example(30, (BUCKET, "runs"), "softDeletePolicy.retentionDurationSeconds", 30 * 24 * 3600),
    "registry.keep": Example(False, IMAGES, "@retain_on_delete", False),
    "registry.adopt": Example(
        True, IMAGES, "@import_id", "projects/my-project/locations/us-east4/repositories/mine-docker"
    ),
    "registry.keep_untagged_days": Example(21, IMAGES, "cleanupPolicies[2].condition.olderThan", f"{21 * 24 * 3600}s"),
    "registry.keep_versions": Example(17, IMAGES, "cleanupPolicies[0].mostRecentVersions.keepCount", 17),
    "registry.docker_hub.username": Example("mydockerid", MIRROR, f"{_LOGIN}.username", "mydockerid"),
    "registry.docker_hub.password_secret": Example(HUB_TOKEN, MIRROR, f"{_LOGIN}.passwordSecretVersion", HUB_TOKEN),
    "cost.billing_account": Example(BILLING_ACCOUNT, BUDGET, "billingAccount", BILLING_ACCOUNT),
    "cost.monthly_usd": Example(54_321, BUDGET, "amount.specifiedAmount.units", "54321"),
    "build.machine_type": Example("c3-highcpu-44", WORKERS, "workerConfig.machineType", "c3-highcpu-44"),
    "build.disk_gb": Example(345, WORKERS, "workerConfig.diskSizeGb", 345),
    "build.peered": Example(True, WORKERS, "networkConfig.peeredNetworkIpRange", "10.48.82.0/24"),
    "wandb.keep": Example(True, SECRET, "@retain_on_delete", True),
    "wandb.adopt": Example(True, SECRET, "@import_id", "projects/my-project/secrets/mine-wandb"),
    "wandb_api_key": Example(
        "hunter2", ("gcp:secretmanager/secretVersion:SecretVersion", "wandb-value"), "secretDataWo", "hunter2"
    ),
}

NOT_IN_THE_CLOUD = {"state_backend", "cost.max_hourly_usd"}
"""Settings that show in no resource (tests/oasis_stack/test_command_line.py, test_prices.py)."""

LADDER: list[dict[str, Any]] = [
    {"mode": "reservation", "reservation": "theirs", "max_nodes": 7, "compact_placement": True},
    {"mode": "flex-start", "max_nodes": 4, "max_run_duration_hours": 24},
    {"mode": "spot", "max_nodes": 2},
    {"mode": "queued", "max_nodes": 3, "max_run_duration_hours": 48},
]
"""The examples of a ladder's fields are spread over its rungs, since no rung may have them all."""

ALONE = {"gpu.machine_type", "data.adopt", "runs.adopt"}
"""Examples that exclude others: the L4 has no RDMA, and a bucket that is taken over is kept."""


def everything_changed(but: Set[str]) -> dict[str, Any]:
    """A stack file with every example at once, but for some settings."""
    config = changed("oasis:gpu.capacity", LADDER)
    for key, example in EXAMPLES.items():
        if key not in but | ALONE and not key.startswith("gpu.capacity"):
            config = changed(config_key(key), example.value, config)
    return config
