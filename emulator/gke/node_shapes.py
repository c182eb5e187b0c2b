"""What a node of a GKE node pool looks like to Kubernetes: its labels, taints and what it can allocate. Pure.

Labels and taints: GKE documentation ("Predefined node labels", "About GPUs in GKE", "About flex-start") and
kubernetes/autoscaler, cluster-autoscaler/cloudprovider/gce. What is reserved: reserved.go there, which predicts what a
future node would allocate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from emulator.google.collection import last
from emulator.google.machines import GPU_MACHINES, machine_size

Body = dict[str, Any]

POOL_LABEL = "cloud.google.com/gke-nodepool"
COMPUTE_CLASS_LABEL = "cloud.google.com/compute-class"
GPU = "nvidia.com/gpu"

QUEUED_KEY = "cloud.google.com/gke-queued"
"""Taint and label of the nodes that queued provisioning adds (GKE documentation, "Run a large-scale workload
with flex-start with queued provisioning")."""

REQUEST_LABEL = "autoscaling.gke.io/provisioning-request"
"""Label with the resize request that added a node (the same page, on Kueue's ProvisioningRequestConfig)."""

_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "PREFER_NO_SCHEDULE": "PreferNoSchedule", "NO_EXECUTE": "NoExecute"}
_LOCAL_SSD_GIB = 375
_SSD_FILE_SYSTEM = 0.0186
"""The file system's share of one local SSD, rounded up from measurements on GKE (kubernetes/autoscaler,
cluster-autoscaler/cloudprovider/gce/gce_reserved.go). With 16 or 24 SSDs the share is less than half of that; 32, as on
an H200's machine, are not in that table. So such a node shows about 1 % too little here."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A node pool as the autoscaler sees it."""

    identity: str
    """Name path in the emulated cloud."""
    body: Mapping[str, Any]
    """The pool's object there."""

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def cluster(self) -> str:
        """Name path of its cluster."""
        return self.identity.partition("/nodePools/")[0]

    @property
    def zones(self) -> list[str]:
        return list(self.body["locations"])

    @property
    def config(self) -> Mapping[str, Any]:
        return self.body["config"]

    @property
    def machine_type(self) -> str:
        return str(self.config.get("machineType", "e2-medium"))

    @property
    def nics(self) -> set[tuple[str, str]]:
        """VPC and subnetwork of each additional NIC."""
        extra = self.body.get("networkConfig", {}).get("additionalNodeNetworkConfigs") or []
        return {(last(pair.get("network", "")), last(pair.get("subnetwork", ""))) for pair in extra}

    @property
    def scales(self) -> bool:
        """Whether its number of nodes follows its pods (autoscaling)."""
        return bool(self.body.get("autoscaling", {}).get("enabled"))

    @property
    def queued(self) -> bool:
        """Whether only ProvisioningRequests add nodes to it."""
        return bool(self.body.get("queuedProvisioning", {}).get("enabled"))

    @property
    def minimum(self) -> int:
        """Minimum number of nodes, all zones together."""
        if not self.scales:
            return int(self.body.get("initialNodeCount", 0)) * len(self.zones)
        return _either(self.body["autoscaling"], "totalMinNodeCount", "minNodeCount", len(self.zones))

    @property
    def maximum(self) -> int:
        """Maximum number of nodes, all zones together."""
        if not self.scales:
            return self.minimum
        return _either(self.body["autoscaling"], "totalMaxNodeCount", "maxNodeCount", len(self.zones))


def networks_of(pool: Pool, sets: Iterable[Body], networks: Iterable[Body]) -> list[str]:
    """The GKE Networks of a pool's additional NICs: those on the parameter set of a NIC's VPC and subnetwork.

    Args:
        pool: any.
        sets: the cluster's GKENetworkParamSets.
        networks: its Networks.
    """
    ours = {
        found["metadata"]["name"]
        for found in sets
        if (found["spec"].get("vpc"), found["spec"].get("vpcSubnet")) in pool.nics
    }
    return sorted(
        found["metadata"]["name"] for found in networks if found["spec"].get("parametersRef", {}).get("name") in ours
    )


def network_resources(networks: Iterable[str]) -> dict[str, str]:
    """What a node on these GKE Networks offers and a pod that names them requests: an address and the device for each
    (GoogleCloudPlatform/cluster-autoscaler 7d250507, pkg/networking/matcher.go)."""
    return {f"networking.gke.io.networks/{network}{part}": "1" for network in networks for part in (".IP", "")}


def node(pool: Pool, name: str, zone: str, networks: Iterable[str]) -> Body:
    """The Node object of a new node; `networks` are the GKE Networks of its additional NICs."""
    vcpus, memory_gb = machine_size(pool.machine_type)
    capacity = _capacity(pool, vcpus, memory_gb, networks)
    streams = bool(pool.config.get("gcfsConfig", {}).get("enabled"))
    allocatable = {
        **capacity,
        "cpu": f"{vcpus * 1000 - reserved_cpu_millis(vcpus)}m",
        "memory": f"{capacity_memory_mib(memory_gb) - reserved_memory_mib(memory_gb, streams)}Mi",
        "ephemeral-storage": f"{int(_disk_gib(pool.config)[1] * 1024)}Mi",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels(pool, zone, name)},
        "spec": {"taints": taints(pool), "providerID": f"gce://{pool.identity.split('/')[1]}/{zone}/{name}"},
        "status": {"capacity": capacity, "allocatable": allocatable},
    }


def reserved_cpu_millis(vcpus: int) -> int:
    """6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest."""
    shares = [60.0, 10.0, 5.0, 5.0][:vcpus]
    return round(sum(shares) + 2.5 * max(0, vcpus - 4))


def capacity_memory_mib(memory_gb: int) -> int:
    """The machine's memory minus the kernel's: 1/64, 16 MiB, and 64 MiB on machines above 3 GiB."""
    physical = memory_gb * 1024
    return physical - physical // 64 - 16 - (64 if physical > 3 * 1024 else 0)


def reserved_memory_mib(memory_gb: int, streams: bool) -> int:
    """25 % of the machine's memory up to 4 GB, 20 % up to 8, 10 % up to 16, 6 % up to 128, 2 % beyond; 4 % more of that
    if it `streams` images; plus 100 MiB.

    A GB is 1000 MiB here ("duplicating an upstream bug", says reserved.go; the 4 % are from GKE's own,
    GoogleCloudPlatform/cluster-autoscaler 7d250507, pkg/cloudprovider/gke/reserved.go).
    """
    physical, reserved = memory_gb * 1024, 0.0
    brackets = ((0, 0.25), (4000, 0.20), (8000, 0.10), (16_000, 0.06), (128_000, 0.02), (physical, 0.0))
    for (start, share), (end, _) in pairwise(brackets):
        reserved += max(0, min(physical, end) - start) * share
    return int(reserved) + (int(reserved * 0.04) if streams else 0) + 100


def labels(pool: Pool, zone: str, name: str) -> dict[str, str]:
    """The pool's own labels and those that GKE adds."""
    found = {
        POOL_LABEL: pool.name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": pool.machine_type,
        "topology.kubernetes.io/region": zone.rpartition("-")[0],
        "topology.kubernetes.io/zone": zone,
        "cloud.google.com/gke-boot-disk": str(pool.config.get("diskType", "pd-balanced")),
        "cloud.google.com/gke-os-distribution": "cos",
        "cloud.google.com/machine-family": pool.machine_type.partition("-")[0],
    }
    if gpus := _gpus(pool):
        found["cloud.google.com/gke-accelerator-count"] = str(gpus[1])
    return found | pool_labels(pool) | dict(pool.config.get("labels") or {})


def pool_labels(pool: Pool) -> dict[str, str]:
    """The labels that GKE adds to the pool itself, where its API and the provider show them."""
    config = pool.config
    found: dict[str, str] = {}
    if gpus := _gpus(pool):
        found["cloud.google.com/gke-accelerator"] = gpus[0]
    if config.get("flexStart"):
        found["cloud.google.com/gke-flex-start"] = "true"
    if config.get("spot"):
        found["cloud.google.com/gke-provisioning"] = "spot"
        found["cloud.google.com/gke-spot"] = "true"
    if config.get("maxRunDuration"):
        found["cloud.google.com/gke-max-run-duration-seconds"] = str(config["maxRunDuration"]).rstrip("s")
    if config.get("ephemeralStorageLocalSsdConfig"):
        found["cloud.google.com/gke-ephemeral-storage-local-ssd"] = "true"
    if pool.queued:
        found[QUEUED_KEY] = "true"
    return found


def taints(pool: Pool) -> list[Body]:
    """The pool's own taints, and those that GKE adds to nodes with GPUs and to queued ones."""
    found = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": _EFFECTS[taint["effect"]]}
        for taint in pool.config.get("taints") or []
    ]
    if _gpus(pool) and not any(taint["key"] == GPU for taint in found):
        found.append({"key": GPU, "value": "present", "effect": "NoSchedule"})
    if pool.queued and not any(taint["key"] == QUEUED_KEY for taint in found):
        found.append({"key": QUEUED_KEY, "value": "true", "effect": "NoSchedule"})
    return found


def api_taints(pool: Pool) -> list[Body]:
    """All taints as the GKE API spells them."""
    names = {value: key for key, value in _EFFECTS.items()}
    return [{**taint, "effect": names[taint["effect"]]} for taint in taints(pool)]


def _capacity(pool: Pool, vcpus: int, memory_gb: int, networks: Iterable[str]) -> dict[str, str]:
    gpus = _gpus(pool)
    found = {
        "cpu": str(vcpus),
        "memory": f"{capacity_memory_mib(memory_gb)}Mi",
        "ephemeral-storage": f"{int(_disk_gib(pool.config)[0] * 1024)}Mi",
        "pods": str(pool.body.get("maxPodsConstraint", {}).get("maxPodsPerNode", 110)),
    }
    if gpus:
        found[GPU] = str(gpus[1])
    return found | network_resources(networks)


def _disk_gib(config: Mapping[str, Any]) -> tuple[float, float]:
    """Capacity, and what pods may request of it. The capacity is that of the local SSDs or, without any, of the boot
    disk less its operating system (`CalculateOSReservedEphemeralStorage` of gce_reserved.go). Subtracted from it are a
    tenth, below which the kubelet evicts pods, and what GKE reserves (GoogleCloudPlatform/cluster-autoscaler,
    pkg/cloudprovider/gke/reserved.go, `PredictKubeReservedEphemeralStorage` and its counterpart for local SSDs)."""
    if ssds := int((config.get("ephemeralStorageLocalSsdConfig") or {}).get("localSsdCount", 0)):
        capacity, kept = ssds * _LOCAL_SSD_GIB * (1 - _SSD_FILE_SYSTEM), {1: 50, 2: 75}.get(ssds, 100)
    else:
        size = int(config.get("diskSizeGb", 100))
        capacity = size * (1 - 0.015635) - 4.148 - min(100 / 1024, size * 0.001)
        kept = min(size // 2, 6 + int(size * 0.35), 100)
    return capacity, capacity * 0.9 - kept


def _gpus(pool: Pool) -> tuple[str, int] | None:
    machine = GPU_MACHINES.get(pool.machine_type)
    if machine is not None:
        return machine.accelerator, machine.gpus
    attached = next(iter(pool.config.get("accelerators") or []), None)
    return (str(attached["acceleratorType"]), int(attached["acceleratorCount"])) if attached else None


def _either(scaling: Mapping[str, Any], total: str, per_zone: str, zones: int) -> int:
    return int(scaling[total]) if scaling.get(total) is not None else int(scaling.get(per_zone) or 0) * zones
