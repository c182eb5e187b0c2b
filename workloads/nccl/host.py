"""What a rank finds around itself: its node, its libraries, and the network interface that Ray's nodes share."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
from typing import Any

import ray
import torch
from torch.cuda import nccl

_SIOCGIFADDR = 0x8915  # netdevice(7)


def describe() -> dict[str, Any]:
    """What this process runs on, as plain data for the results' head."""
    cuda = torch.cuda.is_available()
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
        "accelerator": torch.cuda.get_device_name() if cuda else "",
        "versions": versions,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(("NCCL_", "GLOO_", "OMP_"))
        },
    }


def interface_of(address: str) -> str | None:
    """Network interface that has this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
