"""The share of a node that a Ray pod may take, after GKE, its DaemonSets and the FUSE sidecar. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from oasis_stack.facts.machine import Machine

SYSTEM_CPU_MILLIS = 1000
"""Requests of GKE's DaemonSets on a GPU node (anetd, fluentbit, metrics, metadata server, NodeLocal DNS, device plugin,
DCGM, CSI drivers): an estimate, 0.8 to 0.95 vCPU summed from their public manifests, rounded up."""

SYSTEM_MEMORY_MIB = 2048
"""As above."""

SPARE = 1 / 100
"""Part of a node that is left free beside all that is known: a pod that asks for a little too much never starts."""

SIDECAR_MAX_CPU_MILLIS = 2000
"""Most that is asked for the FUSE sidecar; its limit is the node."""

EVICTION_MEMORY_MIB = 100
"""`KubeletEvictionHardMemory` (kubernetes/autoscaler, cluster-autoscaler/cloudprovider/gce/reserved.go)."""


IMAGE_STREAMING = 4 / 100
"""How much more memory GKE keeps for itself where nodes stream images (GoogleCloudPlatform/cluster-autoscaler 7d250507,
pkg/cloudprovider/gke/reserved.go, `gcfsReservedFactor`)."""


@dataclass(frozen=True, kw_only=True)
class PodSize:
    """Requests and limits of a Ray container."""

    cpus: int
    """vCPUs; more than a node has free, and the pod stays Pending for ever."""
    memory_gib: int
    """Memory in GiB, /dev/shm included; as with `cpus`."""


@dataclass(frozen=True, kw_only=True)
class SidecarSize:
    """Requests of a pod's Cloud Storage FUSE sidecar; its limits are the node's."""

    cpu_millis: int
    """Thousandths of a vCPU."""
    memory_mib: int
    """Memory in MiB: 64 for each file that is open for writing, and the metadata caches."""


BESIDE_HEADS = PodSize(cpus=1, memory_gib=2)
"""What kube-system's Deployments, KubeRay and Kueue may take of a system node, beside what every node loses."""


def sidecar(cpus: int, memory_gib: int) -> SidecarSize:
    """Sidecar for a pod of that size: twice the defaults or more, with what the pod can read at once."""
    return SidecarSize(cpu_millis=min(SIDECAR_MAX_CPU_MILLIS, max(500, cpus * 20)), memory_mib=max(512, memory_gib * 8))


def whole_node_pod(machine: Machine) -> PodSize:
    """The one Ray pod of a GPU node."""
    beside = sidecar(machine.vcpus, machine.memory_gb)
    cpu_millis = allocatable_cpu_millis(machine.vcpus) - SYSTEM_CPU_MILLIS - beside.cpu_millis
    memory_mib = allocatable_memory_mib(machine.memory_gb * 1024) - SYSTEM_MEMORY_MIB - beside.memory_mib
    return PodSize(
        cpus=int(cpu_millis - machine.vcpus * 1000 * SPARE) // 1000,
        memory_gib=int(memory_mib - machine.memory_gb * 1024 * SPARE) // 1024,
    )


def heads_on(machine: Machine, nodes: int, head: PodSize) -> int:
    """Ray heads, each with its sidecar, that so many nodes of the system pool hold together."""
    beside = sidecar(head.cpus, head.memory_gib)
    taken_cpu = SYSTEM_CPU_MILLIS + BESIDE_HEADS.cpus * 1000 + machine.vcpus * 1000 * SPARE
    taken_memory = SYSTEM_MEMORY_MIB + BESIDE_HEADS.memory_gib * 1024 + machine.memory_gb * 1024 * SPARE
    by_cpu = (allocatable_cpu_millis(machine.vcpus) - taken_cpu) // (head.cpus * 1000 + beside.cpu_millis)
    by_memory = (allocatable_memory_mib(machine.memory_gb * 1024) - taken_memory) // (
        head.memory_gib * 1024 + beside.memory_mib
    )
    return nodes * max(0, int(min(by_cpu, by_memory)))


def allocatable_cpu_millis(vcpus: int) -> int:
    """What pods may ask for together: all but 6 % of the first vCPU, 1 % of the second, 0.5 % of the next two and
    0.25 % of the rest (reserved.go, as above, `cpuReservedMillicores`)."""
    return vcpus * 1000 - _in_steps(vcpus * 1000, ((1000, 0.06), (1000, 0.01), (2000, 0.005)), 0.0025)


def allocatable_memory_mib(physical_mib: int) -> int:
    """Memory that pods may ask for together, by the autoscaler's formula for a node to come (reserved.go).

    The kernel takes 1/64, 16 MiB, and from 3 GiB on 64 MiB for its I/O buffers (`CalculateKernelReserved`). GKE keeps
    25 % of the first 4 GB, 20 % of the next 4, 10 % of the next 8, 6 % of the next 112 and 2 % of the rest, where a GB
    is 1000 MiB (`memoryReservedMiB`), of that 4 % more as every pool here streams images, and 100 MiB are kept free.
    Machines of 1 GB, which are another case, do not come here.
    """
    kernel = physical_mib // 64 + 16 + (64 if physical_mib > 3 * 1024 else 0)
    steps = ((4000, 0.25), (4000, 0.2), (8000, 0.1), (112_000, 0.06))
    kept = ceil(_in_steps(physical_mib, steps, 0.02) * (1 + IMAGE_STREAMING))
    return physical_mib - kernel - kept - EVICTION_MEMORY_MIB


def _in_steps(amount: int, steps: tuple[tuple[int, float], ...], rest: float) -> int:
    total, left = 0.0, amount
    for width, share in steps:
        taken = min(left, width)
        total += taken * share
        left -= taken
    return ceil(total + left * rest)
