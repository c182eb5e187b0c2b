"""The Compute Engine quotas that a stack's nodes can use at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from oasis_stack.facts.machine import BOOT_DISK_GB, LOCAL_SSD_GB, Machine, general_purpose
from oasis_stack.settings.schema import Settings


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota, by Google's names for it, and how much of it the stack needs."""

    quota: str
    """Id in the Cloud Quotas API, which knows every quota."""
    metric: str
    """Name in Compute Engine's own API; empty if that API does not list the quota."""
    dimensions: Mapping[str, str] = field(default_factory=dict)
    """Dimensions other than the region."""
    region: str
    """Region of the quota; empty for one of the whole project."""
    most: int
    """The most that the stack asks for."""
    what: str
    """The part of the stack that asks for it."""

    @property
    def called(self) -> str:
        """Its name as the console shows it, with its dimensions."""
        return ", ".join([self.quota, *(f"{key}={value}" for key, value in self.dimensions.items())])


def of_nodes(settings: Settings) -> list[Quota]:
    """Quotas of all nodes: GPUs, boot disks and vCPUs.

    Names in the Cloud Quotas API: GoogleCloudPlatform/gcpdiag (project quotas), and the words in which Compute Engine
    refuses a disk, `limit name = SSD-TOTAL-GB-per-project-region`. Balanced disks count as SSD.
    """
    gpu, pools = settings.gpu, (settings.cluster.system_pool, settings.cluster.cpu_pool)
    nodes = [(general_purpose(pool.machine_type), pool.max_nodes) for pool in pools]
    vcpus = sum(machine.vcpus * most for machine, most in nodes)
    regional = Counter[tuple[str, str]]()
    for machine, most in [*nodes, *([(gpu.machine, gpu.max_nodes)] if gpu else [])]:
        regional[_DISKS[machine.boot_disk_type], "GB of boot disks"] += most * BOOT_DISK_GB
    for machine, most in nodes:
        regional[_CPUS[machine.name.partition("-")[0]], "vCPUs of system and CPU pools"] += most * machine.vcpus
    return [
        *of_gpus(settings),
        *(
            Quota(
                quota=_regional(metric),
                metric=metric,
                region=settings.region,
                most=most,
                what=what,
            )
            for (metric, what), most in regional.items()
            if most
        ),
        Quota(
            quota="CPUS-ALL-REGIONS-per-project",
            metric="CPUS_ALL_REGIONS",
            region="",
            most=vcpus,
            what="system and CPU pools; whether GPU nodes count, no public source says",
        ),
    ]


def by_family(settings: Settings) -> dict[str, int]:
    """The other quotas that GPU nodes use, and how much at most, by metric of the Cloud Quotas API. Each has one limit
    per machine family; no public source says what A3 Ultra's is called there."""
    gpu = settings.gpu
    if gpu is None:
        return {}
    taken = {
        "compute.googleapis.com/local_ssd_total_storage_per_vm_family": gpu.machine.local_ssds * LOCAL_SSD_GB,
        "compute.googleapis.com/rdma_networking_cards_per_vm_family": gpu.machine.rdma_nics,
    }
    return {metric: each * gpu.max_nodes for metric, each in taken.items() if each}


_DISKS = {"pd-balanced": "SSD_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
"""Metric of each kind of boot disk."""

_CPUS = {"e2": "CPUS", "n2": "N2_CPUS", "n2d": "N2D_CPUS"}
"""Metric of each family's vCPUs in a region. GKE refuses nodes when it runs out: `Insufficient regional quota to
satisfy request: resource "CPUS"` (discovery document of Compute Engine v1, `Quota.metric`). An E2_CPUS metric exists
too, but E2 machines were seen to use none of it; they count as CPUS according to the page "Allocation quotas" (Compute
Engine documentation, 2026), as others quote it."""


_WITH_A_QUOTA = frozenset({"nvidia-l4"})
"""GPUs whose reserved and on-demand nodes have a quota of their own (discovery document of Compute Engine v1,
`Quota.metric`; H100 and newer have none there)."""


def of_gpus(settings: Settings) -> list[Quota]:
    """Quotas of the ladder's GPUs; none without GPUs."""
    gpu = settings.gpu
    if gpu is None:
        return []
    taken = sum(entry.max_nodes for entry in gpu.capacity if entry.mode in ("flex-start", "queued", "spot"))
    own = gpu.max_nodes - taken
    found = [
        *([_preemptible(gpu.machine, settings.region, taken)] if taken else []),
        *([_of_own(gpu.machine, settings.region, own)] if own else []),
    ]
    every = Quota(
        quota="GPUS-ALL-REGIONS-per-project",
        metric="GPUS_ALL_REGIONS",
        region="",
        most=gpu.max_nodes * gpu.machine.gpus,
        what="all GPUs",
    )
    return [*found, every]


def _model(machine: Machine) -> str:
    return machine.accelerator.split("-")[1].upper()


def _preemptible(machine: Machine, region: str, nodes: int) -> Quota:
    """Quota of preemptible nodes, which include flex-start ("About flex-start provisioning mode")."""
    return _of_model(machine, region, nodes, "PREEMPTIBLE_", "flex-start, queued and Spot")


def _of_own(machine: Machine, region: str, nodes: int) -> Quota:
    """Quota of reserved and on-demand nodes. Compute Engine's own API does not list the quota that newer models share
    (sources: a project's list of quotas of 2026-05-20, and four public tools that read both APIs)."""
    what = "reservation and on-demand"
    if machine.accelerator in _WITH_A_QUOTA:
        return _of_model(machine, region, nodes, "", what)
    return Quota(
        quota="GPUS-PER-GPU-FAMILY-per-project-region",
        metric="",
        dimensions={"gpu_family": f"NVIDIA_{_model(machine)}"},
        region=region,
        most=nodes * machine.gpus,
        what=what,
    )


def _of_model(machine: Machine, region: str, nodes: int, prefix: str, what: str) -> Quota:
    metric = f"{prefix}NVIDIA_{_model(machine)}_GPUS"
    return Quota(quota=_regional(metric), metric=metric, region=region, most=nodes * machine.gpus, what=what)


def _regional(metric: str) -> str:
    """Id in the Cloud Quotas API of a regional metric of Compute Engine."""
    return f"{metric.replace('_', '-')}-per-project-region"
