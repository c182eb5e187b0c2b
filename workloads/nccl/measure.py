"""One rank's part of the benchmark: joins the process group, times a collective, checks its result. torch only, no Ray.

Calls are timed back to back between two synchronisations, as nccl-tests does; what one call costs alone is not shown.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from workloads import process_group
from workloads.errors import UsageError
from workloads.nccl import collectives
from workloads.nccl.bandwidth import format_size
from workloads.nccl.collectives import Collective

LEAST_ITERATIONS = 5
MOST_ITERATIONS = 2000
_RESERVE_BYTES = 512 * 1024**2  # torch's and NCCL's own buffers beside ours


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every rank does alike."""

    collective: Collective
    dtype: str
    """Element type by nccl-tests' name."""
    warmup: int
    """Calls before timing, at every size: the first ones connect and allocate."""
    iterations: int
    """Calls timed at every size; 0 chooses as many as `seconds` need."""
    seconds: float
    """How long timing one size lasts where `iterations` is 0; shorter is noisier."""
    timeout_seconds: float
    """How long one call may hang before the process group gives up."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One rank's measurement of one size."""

    seconds: float
    """Mean time of one call."""
    iterations: int
    wrong: int
    """Wrong elements on this rank, before and after timing."""


def element_size(dtype: str) -> int:
    """Bytes of one element."""
    return collectives.DTYPES[dtype].itemsize


class Participant:
    """One rank in the process group."""

    def __init__(self, rank: int, ranks: int, device: torch.device, plan: Plan) -> None:
        self.rank = rank
        self.ranks = ranks
        self._plan = plan
        self._device = device
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._dtype = collectives.DTYPES[plan.dtype]
        self._period = collectives.period(self._dtype, ranks)
        self._expected = plan.collective.expected(self._period, ranks)

    def join(self, address: str, port: int, listener: socket.socket | None) -> None:
        """Enter the process group; returns when all ranks have.

        Args:
            address: where rank 0's meeting point is.
            port: its port.
            listener: on rank 0, what `listen` returned.
        """
        timeout = timedelta(seconds=self._plan.timeout_seconds)
        process_group.join(self.rank, self.ranks, address, port, listener, timeout, self._device)

    def leave(self) -> None:
        """Leave the process group."""
        process_group.leave()

    def room(self) -> int:
        """Largest size, in bytes, whose two buffers fit this rank's free memory."""
        return max(0, (_free_bytes(self._device) - _RESERVE_BYTES) // 2)

    def measure(self, size: int, in_place: bool) -> Sample:
        """Time one size; every rank calls this alike.

        Raises:
            UsageError: the buffers do not fit this rank's memory.
        """
        count = size // self._dtype.itemsize
        self._check_memory(size if in_place else 2 * size, size)
        source = torch.empty(count, dtype=self._dtype, device=self._device)
        target = source if in_place else torch.empty_like(source)
        run = self._plan.collective.run
        wrong = self._wrong(source, target)
        began = time.perf_counter()
        for _ in range(self._plan.warmup):
            run(source, target)
        self._synchronize()
        iterations = self._plan.iterations or self._choose_iterations(time.perf_counter() - began)
        self._agree(0.0)  # nobody starts before the last one is ready
        began = time.perf_counter()
        for _ in range(iterations):
            run(source, target)
        self._synchronize()
        elapsed = time.perf_counter() - began
        wrong += self._wrong(source, target)
        return Sample(seconds=elapsed / iterations, iterations=iterations, wrong=wrong)

    def _wrong(self, source: Tensor, target: Tensor) -> int:
        collectives.fill(source, self.rank, self._period)
        if source is not target:
            target.zero_()  # else a call that did nothing would leave the last right result
        self._plan.collective.run(source, target)
        return collectives.count_wrong(target, self._expected)

    def _choose_iterations(self, warmup_seconds: float) -> int:
        slowest = self._agree(warmup_seconds / max(self._plan.warmup, 1))
        wanted = round(self._plan.seconds / max(slowest, 1e-9))
        return max(LEAST_ITERATIONS, min(MOST_ITERATIONS, wanted))

    def _agree(self, value: float) -> float:
        """The largest value of all ranks, known to all; also a barrier."""
        tensor = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor.item())

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _check_memory(self, needed: int, size: int) -> None:
        free = _free_bytes(self._device)
        if needed + _RESERVE_BYTES > free:
            raise UsageError(
                f"Size {format_size(size)} needs {format_size(needed)} on rank {self.rank}, which has "
                f"{free / 1024**3:.1f} GiB free.",
                "End --sizes earlier.",
            )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise UsageError("/proc/meminfo has no MemAvailable, so free memory is unknown.", "Run on Linux 3.14 or newer.")
