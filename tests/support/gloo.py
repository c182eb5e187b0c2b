"""Several gloo ranks in processes of their own, for what a collective does between them."""

from __future__ import annotations

import multiprocessing
import socket
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import TypeVar

import torch

from workloads.cluster import process_group
from workloads.nccl.definitions.collectives import COLLECTIVES, Seat
from workloads.nccl.ranks.rank import Layout, Rank, RankPlan

Answer = TypeVar("Answer")

_listeners: list[socket.socket] = []
"""In a rank's process: the meeting point, which rank 0 keeps."""


def plan(op: str = "all_reduce", dtype: str = "float", iterations: int = 2, blocking: bool = False) -> RankPlan:
    """A short one."""
    return RankPlan(
        collective=COLLECTIVES[op],
        dtype=dtype,
        warmup=1,
        iterations=iterations,
        seconds=0.1,
        blocking=blocking,
        links=False,
        timeout_seconds=30,
    )


def rank(seat: Seat, plan: RankPlan) -> Rank:
    """A rank on a CPU of this machine, in the process group that this process is in."""
    return Rank(seat, Layout(nodes=1, ranks_per_node=seat.ranks, gpus_per_node=0), plan, {})


def together(ranks: int, work: Callable[[Seat], Answer], seconds: float = 300.0) -> list[Answer]:
    """Run the same work in as many processes as there are ranks, in one process group; their answers, by rank.

    Args:
        ranks: how many.
        work: a function of a module, as it is pickled.
        seconds: how long it may take, and a rank may wait for another.
    """
    with process_group.listen("127.0.0.1") as listener:
        pool = ProcessPoolExecutor(ranks, multiprocessing.get_context("spawn"), _take, (listener,))
        with pool:
            seats = [Seat(rank=rank, ranks=ranks, stride=1) for rank in range(ranks)]
            futures = [pool.submit(_one, seat, work, seconds) for seat in seats]
            return [future.result(timeout=seconds) for future in futures]


def _take(listener: socket.socket) -> None:
    _listeners.append(listener)


def _one(seat: Seat, work: Callable[[Seat], Answer], seconds: float) -> Answer:
    torch.set_num_threads(1)
    listener = _listeners.pop()
    port = listener.getsockname()[1]
    if seat.rank:
        listener.close()
    limit, device = timedelta(seconds=seconds), torch.device("cpu")
    process_group.join(seat.rank, seat.ranks, "127.0.0.1", port, None if seat.rank else listener, limit, device)
    try:
        return work(seat)
    except Exception:
        traceback.print_exc()  # of this rank: those that wait for it fail too, and one of them may be who is heard
        raise
    finally:
        process_group.leave()
