"""Facts per machine type: the hardware of its nodes, the zones that offer it, and the ways to buy it.

The program decides by these facts (RDMA or not, disk kind, ladder), never by the name of a machine type.
"""

from __future__ import annotations

from dataclasses import dataclass

RDMA_MTU = 8896
"""MTU of the RoCE network profile; Google's A3 Ultra guide recommends it for the gVNIC networks of the same nodes too
(Google Cloud documentation, "RDMA network profiles" and "Create an AI-optimized GKE cluster", 2026)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine type as the program sees it."""

    name: str
    """Compute Engine machine type."""
    gpus: int
    """GPUs of one node."""
    accelerator: str
    """GPU type as GKE names it, in node pools and in the node label `cloud.google.com/gke-accelerator`."""
    rdma_nics: int
    """CX-7 NICs of one node, each with its own subnet of the RDMA VPC; 0: no RDMA VPC, no device networks."""
    local_ssds: int
    """Local SSDs that become the node's ephemeral storage."""
    boot_disk_type: str
    """Disk type the machine can boot from; A3 Ultra refuses Persistent Disk."""
    vcpus: int
    """vCPUs of one node, before what GKE reserves for itself."""
    memory_gb: int
    """Memory of one node in GiB, before what GKE reserves for itself."""
    zones: tuple[str, ...]
    """Zones that offer the machine type."""
    on_demand: bool
    """Whether it can be bought on demand."""
    flex_start: bool
    """Whether it can be bought by flex-start."""
    spot: bool
    """Whether it can be bought as Spot."""


BOOT_DISK_GB = 100
"""Boot disk of every node: the system and its images alone, as on GPU nodes pods live on the local SSDs
(saltysoup/oasis-temp, infra/base)."""

LOCAL_SSD_GB = 375
"""Size of one local SSD, by which it is paid for ("About Local SSD disks")."""


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """One autoscaled pool of ordinary nodes, bought on demand."""

    machine_type: str
    """Compute Engine machine type."""
    min_nodes: int
    """Nodes of all zones together that are always there, and paid for."""
    max_nodes: int
    """Most nodes of all zones together; the address plan must hold them. 0: no such pool."""


# Shapes: Google Cloud documentation, "GPU machine types" (2026).
# Zones: skypilot-org/skypilot-catalog, catalogs/v8/gcp/vms.csv; live: `gcloud compute machine-types list`.
# Purchase: "GPU machine types"; H200 is sold by reservation, flex-start and Spot alone.
_A3_ULTRA_ZONES = (
    "asia-south1-b",
    "asia-south2-c",
    "europe-west1-b",
    "europe-west4-a",
    "us-central1-b",
    "us-east4-b",
    "us-east5-a",
    "us-south1-b",
    "us-west1-c",
)
_L4_ZONES = (
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
)


def _l4(name: str, vcpus: int, memory_gb: int) -> Machine:
    return Machine(
        name=name,
        gpus=1,
        accelerator="nvidia-l4",
        rdma_nics=0,
        local_ssds=1,
        boot_disk_type="pd-balanced",
        vcpus=vcpus,
        memory_gb=memory_gb,
        zones=_L4_ZONES,
        on_demand=True,
        flex_start=True,
        spot=True,
    )


MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine(
            name="a3-ultragpu-8g",
            gpus=8,
            accelerator="nvidia-h200-141gb",
            rdma_nics=8,
            local_ssds=32,
            boot_disk_type="hyperdisk-balanced",
            vcpus=224,
            memory_gb=2952,
            zones=_A3_ULTRA_ZONES,
            on_demand=False,
            flex_start=True,
            spot=True,
        ),
        _l4("g2-standard-4", vcpus=4, memory_gb=16),
        _l4("g2-standard-12", vcpus=12, memory_gb=48),
    )
}
"""Machine types that a stack can ask for as GPU nodes. A further type is one more row here, and one in
`emulator/google/machines.py`."""

_N2_SIZES = (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)

GENERAL_PURPOSE: dict[str, tuple[int, ...]] = {
    "e2-standard": (2, 4, 8, 16, 32),
    "e2-highmem": (2, 4, 8, 16),
    "n2-standard": _N2_SIZES,
    "n2-highmem": _N2_SIZES,
    "n2d-standard": (*_N2_SIZES, 224),
    "n2d-highmem": _N2_SIZES[:-1],
}
"""Machine types of nodes without GPUs, those that boot from a balanced Persistent Disk, each with its vCPUs: as the
Compute Engine API lists them (GoogleCloudPlatform/deploystack, the mock of its client; live: `gcloud compute
machine-types list`)."""

BUILD_MACHINES: dict[str, tuple[int, ...]] = {
    **{family: sizes for family, sizes in GENERAL_PURPOSE.items() if not family.startswith("n2-")},
    "e2-highcpu": (2, 4, 8, 16, 32),
    "n2d-highcpu": (*_N2_SIZES, 224),
    **dict.fromkeys(("c3-standard", "c3-highmem", "c3-highcpu"), (4, 8, 22, 44, 88, 176)),
}
"""The same of the families that Cloud Build's private pools take; c3 by Google Cloud documentation, "General-purpose
machine family"."""

_LESS_MEMORY = {"n2-highmem-128": 864}
"""Memory in GiB where it is not vCPUs times the family's; the same list."""


def general_purpose(name: str) -> Machine:
    """A machine type without GPUs, read from its name: `e2-standard-8` has 8 vCPUs, and 4 GiB (highmem: 8) for each.

    Raises:
        ValueError: there is none of this name.
    """
    family, _, size = name.rpartition("-")
    if size not in map(str, GENERAL_PURPOSE.get(family, ())):
        raise ValueError(f"{name!r} is not a machine type of {', '.join(GENERAL_PURPOSE)}")
    vcpus = int(size)
    return Machine(
        name=name,
        gpus=0,
        accelerator="",
        rdma_nics=0,
        local_ssds=0,
        boot_disk_type="pd-balanced",
        vcpus=vcpus,
        memory_gb=_LESS_MEMORY.get(name, vcpus * (4 if family.endswith("standard") else 8)),
        zones=(),
        on_demand=True,
        flex_start=False,
        spot=True,
    )
