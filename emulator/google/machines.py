"""Machine types of the emulated Google: those with GPUs, their zones, and the size of every machine type.

Machine types without GPUs are available everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


class UnknownMachineError(ValueError):
    """The emulator does not know the size of a machine type."""


@dataclass(frozen=True, kw_only=True)
class GpuMachine:
    """One accelerator-optimised machine type."""

    accelerator: str
    """GPU type that a node pool of it must name."""
    gpus: int
    """GPUs of one machine."""
    rdma_nics: int
    """NICs that attach to a RoCE network."""
    vcpus: int
    memory_gb: int
    hyperdisk_only: bool
    """Whether it refuses Persistent Disk."""
    zones: frozenset[str]
    """Zones that offer it."""


# Zones: skypilot-org/skypilot-catalog, catalogs/v8/gcp/vms.csv.
# Shapes: Google Cloud documentation, "GPU machine types".
ROCE_ZONES = frozenset(
    {
        "asia-south1-b",
        "asia-south2-c",
        "europe-west1-b",
        "europe-west4-a",
        "us-central1-b",
        "us-east4-b",
        "us-east5-a",
        "us-south1-b",
        "us-west1-c",
    }
)
"""Zones with a RoCE network profile: those of the machine types that have RDMA NICs ("RDMA network profiles")."""

ROCE_SUFFIX = "-vpc-roce"
"""Suffix of a RoCE network profile's name, after its zone ("RDMA network profiles")."""

_L4_ZONES = frozenset(
    {
        "asia-northeast1-a",
        "asia-south1-a",
        "asia-southeast1-b",
        "europe-west1-b",
        "europe-west4-a",
        "us-central1-a",
        "us-central1-b",
        "us-east1-b",
        "us-east4-a",
        "us-west1-a",
    }
)
_L4_GPUS = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}

GPU_MACHINES: dict[str, GpuMachine] = {
    "a3-ultragpu-8g": GpuMachine(
        accelerator="nvidia-h200-141gb",
        gpus=8,
        rdma_nics=8,
        vcpus=224,
        memory_gb=2952,
        hyperdisk_only=True,
        zones=ROCE_ZONES,
    ),
    **{
        f"g2-standard-{vcpus}": GpuMachine(
            accelerator="nvidia-l4",
            gpus=gpus,
            rdma_nics=0,
            vcpus=vcpus,
            memory_gb=4 * vcpus,
            hyperdisk_only=False,
            zones=_L4_ZONES,
        )
        for vcpus, gpus in _L4_GPUS.items()
    },
}

GPU_FAMILIES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
"""Prefixes of machine types with GPUs. One that is not in `GPU_MACHINES` is refused rather than guessed at."""

_FIXED = {"e2-medium": (2, 4), "e2-small": (2, 2), "n2-highmem-128": (128, 864)}
_GB_PER_VCPU = {"standard": 4, "highmem": 8, "highcpu": 1}


def machine_size(machine_type: str) -> tuple[int, int]:
    """vCPUs and GB of memory (Google Cloud documentation, "Machine families"). Raises UnknownMachineError."""
    if machine := GPU_MACHINES.get(machine_type):
        return machine.vcpus, machine.memory_gb
    if machine_type in _FIXED:
        return _FIXED[machine_type]
    shape = re.fullmatch(r"\w+-(standard|highmem|highcpu)-(\d+)(?:-\w+)?", machine_type)
    if shape is None:
        raise UnknownMachineError(f"the emulated GKE does not know the size of machine type {machine_type!r}")
    vcpus = int(shape[2])
    return vcpus, vcpus * _GB_PER_VCPU[shape[1]]


def roce_zone(profile: str) -> str:
    """The zone whose RDMA NICs attach to networks of a profile, given by name or path; empty for any other profile."""
    name = profile.rsplit("/", 1)[-1]
    return name.removesuffix(ROCE_SUFFIX) if name.endswith(ROCE_SUFFIX) else ""
