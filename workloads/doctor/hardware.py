"""Checks of a node: GPUs that torch can use, gIB, shared memory, scratch disk."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from workloads import environment
from workloads.doctor.finding import Doubtful, NotHere, Subject
from workloads.environment import GIB_DIRECTORY
from workloads.errors import PlaceError, first_line

SHARED_MEMORY = "/dev/shm"

_LEAST_SHM_BYTES = {True: 16 * 1024**3, False: 64 * 1024**2}
"""/dev/shm by whether this is a GPU node: NCCL, data loaders and Ray's object store share it."""

_LEAST_SCRATCH_BYTES = {True: 200 * 1024**3, False: 2 * 1024**3}
"""Free disk by whether this is a GPU node: ImageNet, copied from a bucket, has 150 GB."""

GIB_FILES = ("lib64/libnccl-net*.so", "configs/*.txtpb", "scripts/set_nccl_env.sh")
"""What a whole gIB has at least: `FILES` of `oasis_stack/pod_specs/gib.py`, without which no GPU worker starts."""

_RDMA_DEVICES = Path("/sys/class/infiniband")

_GPU_LIST = Path("/proc/driver/nvidia/gpus")


def visible_gpus() -> int:
    """GPUs by the driver's own list, so that a node with a driver that torch cannot use still counts as a GPU node."""
    return len(list(_GPU_LIST.glob("*")))


def gpus(place: Subject) -> str:
    """Check that torch can use as many GPUs as the stack promises."""
    if not place.gpus:
        raise NotHere("no GPU on this node")
    promised = place.environment.gpus_per_node if place.environment else place.gpus
    remedy = "Compare `nvidia-smi` with the image's CUDA version."
    try:
        import torch

        usable = torch.cuda.device_count()
        if usable != promised:
            raise PlaceError(f"torch can use {usable} of {promised} GPUs", remedy)
        # The driver alone knows how many there are; to give a name, CUDA has to start.
        return f"{usable} x {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    except (OSError, RuntimeError) as error:
        raise PlaceError(f"torch cannot use the GPUs: {first_line(error)}", remedy) from error


def gib(place: Subject) -> str:
    """Check that gIB's files are where NCCL looks for them, and that the node has its RDMA NICs."""
    if place.environment is None or not place.environment.rdma_nics:
        raise NotHere("no RDMA NICs are promised where this runs (OASIS_RDMA_NICS)")
    if not place.gpus:
        raise NotHere("no GPU on this node; gIB is on the GPU workers")
    directory = Path(GIB_DIRECTORY)
    if missing := [pattern for pattern in GIB_FILES if not list(directory.glob(pattern))]:
        raise PlaceError(
            f"{directory} lacks {' and '.join(missing)}",
            "NCCL would fall back to TCP. Look at this pod's init container: "
            f"`kubectl --namespace {place.environment.ray_namespace} logs POD -c install-gib`.",
        )
    nics, promised = len(list(_RDMA_DEVICES.glob("*"))), place.environment.rdma_nics
    if nics < promised:
        raise PlaceError(
            f"{nics} of {promised} RDMA NICs are in {_RDMA_DEVICES}",
            "Look at the pod's networks (`kubectl --namespace "
            f"{place.environment.ray_namespace} describe pod POD`), and have a node that lacks a NIC replaced.",
        )
    return f"gIB in {directory}, {nics} RDMA NICs"


def shared_memory(place: Subject) -> str:
    """Check that /dev/shm is large enough."""
    if sys.platform != "linux":
        raise NotHere(f"only Linux has {SHARED_MEMORY}")
    size = shutil.disk_usage(SHARED_MEMORY).total if Path(SHARED_MEMORY).exists() else 0
    least = _LEAST_SHM_BYTES[place.gpus > 0]
    if size < least:
        raise PlaceError(
            f"{SHARED_MEMORY} has {size / 1024**2:.0f} MiB, at least {least / 1024**2:.0f} are needed",
            f"Mount a memory-backed emptyDir at {SHARED_MEMORY}, or start the container with a larger --shm-size.",
        )
    return f"{size / 1024**3:.1f} GiB"


def scratch(place: Subject) -> str:
    """Check that there is disk for data that is copied from a bucket, W&B's files and an embedded Ray."""
    mount = environment.mount(environment.SCRATCH_MOUNT, place.variables)
    try:
        folder = mount if Path(mount).is_dir() else tempfile.gettempdir()
    except OSError as error:  # a mount that is gone; or every disk is full
        reason = error.strerror or first_line(error)
        raise PlaceError(f"there is no folder for scratch: {reason}", "Free some disk, or set TMPDIR.") from error
    if not os.access(folder, os.W_OK):
        raise PlaceError(f"{folder} is read-only", "Mount a writable volume there, or set TMPDIR to one.")
    free = shutil.disk_usage(folder).free
    least = _LEAST_SCRATCH_BYTES[place.gpus > 0]
    if free < least:
        raise Doubtful(
            f"{free / 1024**3:.1f} GiB are free in {folder}, and {least / 1024**3:.0f} may be needed",
            "Free some, or read data from a mount: only a gs:// address in --data is copied to this disk.",
        )
    return f"{free / 1024**3:.1f} GiB free in {folder}"
