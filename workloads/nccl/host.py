"""What a rank finds around itself: its device, its node and its libraries."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

import ray
import torch
from torch.cuda import nccl


def device(gpus_per_node: int) -> torch.device:
    """This rank's device: the GPU that Ray gave it, or the CPU where the layout has no GPUs, whatever the machine has.

    Args:
        gpus_per_node: of the layout; 0 is a layout on CPUs.
    """
    if not gpus_per_node:
        return torch.device("cpu")
    assigned = ray.get_runtime_context().get_accelerator_ids()["GPU"][0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # torch counts the visible GPUs; Ray names them as the variable does, where the node was started with one.
    return torch.device("cuda", visible.split(",").index(assigned) if visible else int(assigned))


def describe(device: torch.device) -> dict[str, Any]:
    """What this process runs on, as plain data for the results' head.

    Args:
        device: this rank's.
    """
    cuda = device.type == "cuda"
    versions = {
        "torch": torch.__version__,
        "ray": ray.__version__,
        "python": platform.python_version(),
    }
    if cuda:
        versions |= {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl.version()))}
    return {
        "host": f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}",
        "backend": "nccl" if cuda else "gloo",
        "accelerator": torch.cuda.get_device_name(device) if cuda else "",
        "versions": versions,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(("NCCL_", "GLOO_", "OMP_"))
        },
    }
