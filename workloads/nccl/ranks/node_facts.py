"""Facts about a rank's environment: its device, its node and its libraries.

Ray is imported only where it is asked, because ranks can run without it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import socket
from pathlib import Path
from typing import Any

import torch
from torch.cuda import nccl

from workloads.doctor.software import driver_version
from workloads.errors import PlaceError
from workloads.nccl.logs import debug_log

GIB = Path("/usr/local/gib/lib64/libnccl-net.so")
"""gIB's network plugin, where a GPU worker's init container puts it."""


def assigned_gpu() -> int:
    """The GPU that Ray gave this rank, as torch counts them."""
    import ray

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
    import ray

    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}"


def nccl_version() -> str:
    """Version of the NCCL that this process has loaded; a library path can make it differ from torch's own."""
    code = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(code))
    except OSError:  # it is part of torch's own library
        return ".".join(map(str, nccl.version()))
    # nccl.h, NCCL_VERSION: from 2.9 on major * 10000 + minor * 100 + patch.
    return f"{code.value // 10000}.{code.value % 10000 // 100}.{code.value % 100}"


def plugin_digest(file: Path) -> str:
    """Digest of gIB's plugin, because none of its files states a version; empty if there is no plugin."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else ""


def describe(backend: str, host: str = "") -> dict[str, Any]:
    """Description of this process's machine and software, as plain data for the results' head.

    Args:
        backend: `nccl` or `gloo`.
        host: what to call this node; empty is what Ray calls it, where Ray has started this process.
    """
    versions = {"torch": torch.__version__}
    if not host:
        import ray

        versions |= {"ray": ray.__version__}
    versions |= {"python": platform.python_version()}
    if backend == "nccl":
        versions |= {
            "cuda": str(torch.version.cuda),
            "nccl": nccl_version(),
            "driver": driver_version() or "",
            "gib": plugin_digest(GIB),
        }
    return {
        "host": host or name(),
        "pid": os.getpid(),
        "backend": backend,
        "versions": versions,
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("NCCL_", "GLOO_", "OMP_")) and name != debug_log.VARIABLE
        },
    }
