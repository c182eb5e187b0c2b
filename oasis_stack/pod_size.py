"""How much of a node a Ray pod may take: what GKE, its DaemonSets and the FUSE sidecar need is left out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_stack.machine import Machine

SYSTEM_CPU_MILLIS = 800
"""Requests of GKE's DaemonSets on a GPU node (logging, metrics, CSI drivers, device plugin), with room for one more."""

SYSTEM_MEMORY_MIB = 2048
"""As above."""

EVICTION_MEMORY_MIB = 100
"""Memory that GKE keeps free before it evicts pods."""


@dataclass(frozen=True, kw_only=True)
class PodSize:
    """What a Ray container asks for and is limited to."""

    cpus: int
    """vCPUs; more than a node has free, and the pod stays Pending for ever."""
    memory_gib: int
    """Memory in GiB, /dev/shm included; as with `cpus`."""


@dataclass(frozen=True, kw_only=True)
class SidecarSize:
    """What the Cloud Storage FUSE sidecar of a pod asks for; its limits are the node's."""

    cpu_millis: int
    """Thousandths of a vCPU."""
    memory_mib: int
    """Memory in MiB: 64 for each file that is open for writing, and the metadata caches."""


def sidecar(cpus: int, memory_gib: int) -> SidecarSize:
    """Sidecar for a pod of that size: the defaults twice over, growing with what the pod can read at once."""
    return SidecarSize(cpu_millis=max(500, cpus * 20), memory_mib=max(512, memory_gib * 8))


def gpu_pod(machine: Machine) -> PodSize:
    """The one Ray pod of a GPU node."""
    beside = sidecar(machine.vcpus, machine.memory_gb)
    cpu_millis = machine.vcpus * 1000 - _reserved_cpu_millis(machine.vcpus) - SYSTEM_CPU_MILLIS - beside.cpu_millis
    memory_mib = (
        machine.memory_gb * 1024
        - _reserved_memory_mib(machine.memory_gb * 1024)
        - EVICTION_MEMORY_MIB
        - SYSTEM_MEMORY_MIB
        - beside.memory_mib
    )
    return PodSize(cpus=cpu_millis // 1000, memory_gib=memory_mib // 1024)


def _reserved_cpu_millis(vcpus: int) -> int:
    """6 % of the first vCPU, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest (GKE documentation,
    "Plan GKE Standard node sizes", 2026), rounded up."""
    steps = ((1, 60.0), (1, 10.0), (2, 5.0), (vcpus, 2.5))
    return _in_steps(vcpus, steps)


def _reserved_memory_mib(memory_mib: int) -> int:
    """25 % of the first 4 GiB, 20 % of the next 4, 10 % of the next 8, 6 % of the next 112, 2 % of the rest (ibid.)."""
    gib = 1024
    return _in_steps(
        memory_mib, ((4 * gib, 0.25), (4 * gib, 0.2), (8 * gib, 0.1), (112 * gib, 0.06), (memory_mib, 0.02))
    )


def _in_steps(amount: int, steps: tuple[tuple[int, float], ...]) -> int:
    total, left = 0.0, amount
    for width, share in steps:
        taken = min(left, width)
        total += taken * share
        left -= taken
    return int(total) + 1
