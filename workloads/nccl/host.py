"""What a rank finds around itself: its device, its node and its libraries."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

import ray
import torch
from torch.cuda import nccl

from workloads.errors import PlaceError
from workloads.nccl import kept_logs


def assigned_gpu() -> int:
    """The GPU that Ray gave this rank, as torch counts them."""
    assigned = ray.get_runtime_context().get_accelerator_ids()["GPU"][0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # torch counts the visible GPUs; Ray names them as the variable does, where the node was started with one.
    return visible.split(",").index(assigned) if visible else int(assigned)


def check_gpus(wanted: int) -> None:
    """Refuse a node on which this process does not see the GPUs it is to use.

    Raises:
        PlaceError: torch sees fewer, by a masked device or a missing driver.
    """
    if (seen := torch.cuda.device_count()) < wanted:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise PlaceError(
            f"NCCL needs {wanted} GPUs on node {name()}; torch sees {seen} there"
            + (f" (CUDA_VISIBLE_DEVICES={mask})." if mask is not None else "."),
            "Run `python -m workloads doctor` there, ask for fewer with --ranks-per-node, or measure the CPUs with "
            "--backend gloo.",
        )


def name() -> str:
    """This node, as people and as Ray know it."""
    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}"


def describe(backend: str) -> dict[str, Any]:
    """What this process runs on, as plain data for the results' head.

    Args:
        backend: `nccl` or `gloo`.
    """
    versions = {
        "torch": torch.__version__,
        "ray": ray.__version__,
        "python": platform.python_version(),
    }
    if backend == "nccl":
        versions |= {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl.version()))}
    return {
        "host": name(),
        "pid": os.getpid(),
        "backend": backend,
        "versions": versions,
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("NCCL_", "GLOO_", "OMP_")) and name != kept_logs.VARIABLE
        },
    }
