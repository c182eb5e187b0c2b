"""Ray Train's process group, met as `process_group` has it: Ray's own listens on every interface."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import ray.train.torch
from ray.exceptions import RayError
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend

from workloads import process_group

LEAVE_SECONDS = 10.0
"""How long ranks may take to leave; one that was killed never does, and nothing is lost by not waiting for it."""

_listeners: list[socket.socket] = []
"""In the worker that is rank 0: its listener, from when it is opened until the ranks meet."""


@dataclass
class ProcessGroup(TorchConfig):
    """Arguments of Ray's TorchConfig; the backend follows the device."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return _MeetOnOneAddress


class _MeetOnOneAddress(_TorchBackend):
    # Every rank sees all GPUs of its node, as NCCL needs for NVLink (ray-project/ray issue 61073).
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        address, port = worker_group.execute_single(0, _listen)
        ranks = len(worker_group)
        joining = [
            worker_group.execute_single_async(rank, _join, rank, ranks, address, port, backend_config.timeout_s)
            for rank in range(ranks)
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        with contextlib.suppress(RayError):
            ray.get(worker_group.execute_async(process_group.leave), timeout=LEAVE_SECONDS)


def _listen() -> tuple[str, int]:
    address = ray.util.get_node_ip_address()
    _listeners[:] = [process_group.listen(address)]
    return address, _listeners[0].getsockname()[1]


def _join(rank: int, ranks: int, address: str, port: int, timeout_seconds: float) -> None:
    device = ray.train.torch.get_device()
    listener = _listeners.pop() if rank == 0 else None
    process_group.join(rank, ranks, address, port, listener, timedelta(seconds=timeout_seconds), device)
