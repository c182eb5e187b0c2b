"""Ray Train's process group, set up by `process_group`: Ray's own set-up listens on every interface.

The controller imports this module, so the module imports no torch, which would cost that process half a gigabyte.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError

from workloads.cluster import process_group
from workloads.errors import first_line

LATE_SECONDS = 3.0
"""How much later than the first rank the others may notice that they wait in vain."""

LEAVE_SECONDS = 3.0
"""How long the ranks of a finished run may take to leave; nothing is lost if the wait ends then."""

LIST_SECONDS = 1800.0
"""Longest listing of data on a mount: a million images take minutes, and a mount that hangs takes for ever."""

START_SECONDS = 60.0
"""How much longer than the collective timeout a meeting may take: each rank imports torch first."""

began: list[float] = []
"""In each worker: when its group began to prepare the data and to meet, unix time. The node is billed meanwhile."""

_listeners: list[socket.socket] = []
"""In rank 0's worker: its listener, from when it is opened until the ranks meet."""


@dataclass
class ProcessGroup(BackendConfig):
    """A torch process group over all workers; gloo or NCCL follows from the device."""

    timeout_seconds: float
    """Timeout of the meeting, and of every collective after it."""
    data: str
    """The `--data` value; each worker copies and lists the data before they meet."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _MeetOnOneAddress


class _MeetOnOneAddress(Backend):
    # Every rank sees all GPUs of its node, as NCCL needs for NVLink (ray-project/ray issue 61073).
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        # Before they meet: a rank that has its data may wait longer for another rank's data than for a collective.
        limit = None if backend_config.data.startswith("gs://") else LIST_SECONDS  # a copy takes as long as it must
        preparing = worker_group.execute_async(_prepare, backend_config.data)
        try:
            ray.get(preparing, timeout=limit)
        except GetTimeoutError:
            raise WorkerGroupStartupFailedError(
                f"not every node had listed the data within {limit:.0f} s{_silent(worker_group, preparing)}"
            ) from None
        ranks = len(worker_group)
        joining: list[Any] = []
        try:
            address, port = worker_group.execute_single(0, _listen)
            joining = [
                worker_group.execute_single_async(
                    rank, _join, rank, ranks, address, port, backend_config.timeout_seconds
                )
                for rank in range(ranks)
            ]
            # NCCL itself waits for ever for a rank whose GPU hangs (torch 2.15, blocking communicators).
            ray.get(joining, timeout=backend_config.timeout_seconds + START_SECONDS)
        except GetTimeoutError:
            raise WorkerGroupStartupFailedError(
                f"the ranks did not meet within {backend_config.timeout_seconds + START_SECONDS:.0f} s"
                f"{_silent(worker_group, joining)}"
            ) from None
        except RayTaskError as error:
            # Ray would take this for an error of the controller, which it never retries. But ranks whose peer is lost
            # just then find a closed connection, as often before Ray knows of the loss as after it.
            raise WorkerGroupStartupFailedError(
                f"the ranks did not meet: {first_line(error.cause)}{_silent(worker_group, joining)}"
            ) from error

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        status = worker_group.get_latest_poll_status()
        if status is None or not status.finished or status.errors:
            return  # some rank still computes, waits for a lost one, or is lost; Ray ends their processes in any case
        with contextlib.suppress(RayError):
            ray.get(worker_group.execute_async(process_group.leave), timeout=LEAVE_SECONDS)


def _silent(worker_group: Any, questions: list[Any]) -> str:
    """The ranks that gave no answer while others did, as the end of a message: those that the others waited for."""
    late = ray.wait(questions, num_returns=len(questions), timeout=LATE_SECONDS)[1] if questions else []
    names = [str(worker.metadata.hostname) for worker in worker_group.get_workers()]
    who = [f"rank {rank} on {names[rank]}" for rank, question in enumerate(questions) if question in late]
    return f"; no answer from {', '.join(who)}" if 0 < len(who) < len(questions) else ""


def _prepare(data: str) -> None:
    began[:] = [time.time()]
    # A failure here recurs in the worker's own work, and from there its verdict reaches the controller.
    with contextlib.suppress(Exception):
        from workloads.convnext.images.data import prepare

        prepare(data)


def _listen() -> tuple[str, int]:
    address = ray.util.get_node_ip_address()
    _listeners[:] = [process_group.listen(address)]
    return address, _listeners[0].getsockname()[1]


def _join(rank: int, ranks: int, address: str, port: int, timeout_seconds: float) -> None:
    import ray.train.torch

    device = ray.train.torch.get_device()
    listener = _listeners.pop() if rank == 0 else None
    process_group.join(rank, ranks, address, port, listener, timedelta(seconds=timeout_seconds), device)
