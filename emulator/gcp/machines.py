"""Which GPU machine types the emulated Google sells where. Machine types without GPUs are sold everywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuMachine:
    """One accelerator-optimised machine type."""

    accelerator: str
    """GPU type that a node pool of it must name."""
    gpus: int
    """GPUs of one machine."""
    rdma_nics: int
    """NICs that attach to a RoCE network."""
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
        accelerator="nvidia-h200-141gb", gpus=8, rdma_nics=8, hyperdisk_only=True, zones=ROCE_ZONES
    ),
    **{
        f"g2-standard-{vcpus}": GpuMachine(
            accelerator="nvidia-l4", gpus=gpus, rdma_nics=0, hyperdisk_only=False, zones=_L4_ZONES
        )
        for vcpus, gpus in _L4_GPUS.items()
    },
}

GPU_FAMILIES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
"""Prefixes of machine types that have GPUs: one that is not in `GPU_MACHINES` is refused rather than guessed at."""
