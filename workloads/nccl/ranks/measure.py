"""One rank's part of the benchmark: joins the process group, times a collective, checks its result. torch only, no Ray.

The headline is calls back to back between two synchronisations, as nccl-tests times them; calls one by one, each after
a barrier, show the jitter. Connections are made by the check before the timing, at each size anew, so none is timed.
"""

from __future__ import annotations

import math
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.cluster import process_group
from workloads.errors import UsageError
from workloads.nccl.definitions import collectives
from workloads.nccl.definitions.bandwidth import format_size
from workloads.nccl.definitions.collectives import Collective, Counts, Seat
from workloads.nccl.definitions.data_pattern import DTYPES, NEVER, Data

LEAST_ITERATIONS = 20
"""Of the calls timed back to back; nccl-tests' default (`-n 20`)."""

MOST_ITERATIONS = 2000
LEAST_CALLS, MOST_CALLS = 10, 200
"""Of the calls timed one by one."""

LINK_BYTES = 8 * 1024**2
"""Of an exchange between two ranks: large enough for a link's bandwidth rather than its latency."""

LINK_EXCHANGES = 7

LINK_CALLS = 2 * (1 + LINK_EXCHANGES)
"""Calls that one round of exchanges makes: each after a barrier, and one more to connect."""

_RESERVE_BYTES = 512 * 1024**2  # torch's and NCCL's own buffers beside ours


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """The work that every rank does alike."""

    collective: Collective
    dtype: str
    """Element type by nccl-tests' name."""
    warmup: int
    """Calls before timing, at every size: the first ones connect and allocate."""
    iterations: int
    """Calls timed at every size; 0 chooses as many as `seconds` need."""
    seconds: float
    """How long timing one size lasts where `iterations` is 0; shorter is noisier."""
    blocking: bool
    """Also time calls one by one, for half as long."""
    links: bool
    """Also time exchanges between pairs of ranks, which name a slow one."""
    average: bool
    """The time of a size is the mean over the ranks (nccl-tests -a 1), not the slowest rank's (-a 3)."""
    timeout_seconds: float
    """How long one call may hang before the process group gives up."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One rank's measurement of one size."""

    seconds: float
    """Mean time of one call, back to back."""
    iterations: int
    wrong: int | None
    """Wrong elements on this rank, before and after timing; None where nothing can be checked."""
    calls: tuple[float, ...]
    """Seconds of each call that was timed alone; empty where none was."""


def element_size(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].itemsize


def counts(plan: RankPlan, size: int, ranks: int) -> Counts:
    """Elements that a size asked for comes to, rounded down as nccl-tests does."""
    width = element_size(plan.dtype)
    return plan.collective.counts(size // width, width, ranks)


def most_calls(plan: RankPlan) -> int:
    """Number of calls that `Participant.measure` makes where each takes long."""
    timed = plan.iterations or LEAST_ITERATIONS
    alone = 2 * (plan.iterations or LEAST_CALLS) if plan.blocking else 0  # each after a barrier
    checks, barriers = 2, 2
    return checks + plan.warmup + barriers + timed + alone


class _Clock:
    """Adds up spans of a CPU's work."""

    def __init__(self) -> None:
        self._sum = self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self._sum += time.perf_counter() - self._began

    def seconds(self) -> float:
        return self._sum


class _GpuClock:
    """Adds up spans of the current stream, which a collective's end holds up; nothing is waited for in between."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[-1].record()

    end = begin

    def seconds(self) -> float:
        """Once the device has done it all."""
        spans = zip(self._events[::2], self._events[1::2], strict=True)
        return sum(begun.elapsed_time(ended) for begun, ended in spans) / 1000


class Participant:
    """One rank in the process group."""

    def __init__(self, seat: Seat, device: torch.device, plan: RankPlan) -> None:
        self._seat = seat
        self._plan = plan
        self._device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self._dtype = DTYPES[plan.dtype]
        self._data = Data.of(plan.collective.reduces, self._dtype, seat.ranks)

    def join(self, address: str, port: int, listener: socket.socket | None) -> None:
        """Enter the process group; returns when all ranks have.

        Args:
            address: where rank 0's meeting point is.
            port: its port.
            listener: on rank 0, what `process_group.listen` returned.
        """
        timeout = timedelta(seconds=self._plan.timeout_seconds)
        process_group.join(self._seat.rank, self._seat.ranks, address, port, listener, timeout, self._device)

    def leave(self) -> None:
        """Leave the process group."""
        process_group.leave()

    def room(self, sharing: int) -> int:
        """Largest size, in bytes, whose two buffers fit this rank's part of the free memory.

        Args:
            sharing: ranks on this node, which share its memory where they have no GPU each.
        """
        free = _free_bytes(self._device) // (1 if self._device.type == "cuda" else sharing)
        return max(0, (free - _RESERVE_BYTES) // 2)

    def measure(self, size: int, in_place: bool) -> Sample:
        """Time one size; every rank calls this alike.

        Raises:
            UsageError: the buffers do not fit this rank's memory.
        """
        elements = counts(self._plan, size, self._seat.ranks)
        source, target = self._buffers(elements, in_place)
        before = self._wrong(source, target, elements, in_place)
        began = time.perf_counter()
        for _ in range(self._plan.warmup):
            self._call(source, target)
        self._synchronize()
        expected = self._agree((time.perf_counter() - began) / self._plan.warmup)
        iterations = self._plan.iterations or _fitting(self._plan.seconds, expected, LEAST_ITERATIONS, MOST_ITERATIONS)
        self._agree(0.0)  # nobody starts before the last one is ready
        elapsed = self._back_to_back(source, target, iterations)
        alone = self._one_by_one(source, target, expected) if self._plan.blocking else ()
        after = self._wrong(source, target, elements, in_place)
        wrong = None if before is None or after is None else before + after
        return Sample(seconds=elapsed / iterations, iterations=iterations, wrong=wrong, calls=alone)

    def call(self, size: int) -> None:
        """Make one call of this size, in place, for what NCCL writes of it; every rank calls this alike.

        Raises:
            UsageError: the buffer does not fit this rank's memory.
        """
        self._call(*self._buffers(counts(self._plan, size, self._seat.ranks), in_place=True))
        self._synchronize()

    def _call(self, source: Tensor, target: Tensor) -> None:
        self._plan.collective.prepare(source, target, self._seat)
        self._plan.collective.run(source, target, self._seat)

    def _back_to_back(self, source: Tensor, target: Tensor, calls: int) -> float:
        """Seconds of so many calls, without what precedes a call that is in torch in place only."""
        collective, seat = self._plan.collective, self._seat
        if source is target or not collective.copies:
            began = time.perf_counter()
            for _ in range(calls):
                collective.run(source, target, seat)
            self._synchronize()
            return time.perf_counter() - began
        clock = _GpuClock() if self._device.type == "cuda" else _Clock()
        for _ in range(calls):
            collective.prepare(source, target, seat)
            clock.begin()
            collective.run(source, target, seat)
            clock.end()
        self._synchronize()
        return clock.seconds()

    def links(self, rounds: list[list[tuple[int, int]]]) -> list[tuple[tuple[int, int], float]]:
        """Time an exchange with each of this rank's partners; every rank calls this alike.

        Args:
            rounds: pairs of ranks that exchange at the same time; a rank is in one pair of a round at most.

        Returns:
            Each pair that this rank is in, and the median time of its exchanges.
        """
        source = torch.zeros(LINK_BYTES // self._dtype.itemsize, dtype=self._dtype, device=self._device)
        target = torch.empty_like(source)
        mine = [next((pair for pair in pairs if self._seat.rank in pair), None) for pairs in rounds]
        taken: dict[tuple[int, int], list[float]] = {pair: [] for pair in mine if pair is not None}
        # All pairs in turn, and that several times: what disturbs the machine for a while then meets each of them once.
        for _ in range(1 + LINK_EXCHANGES):
            for pair in mine:
                self._agree(0.0)
                began = time.perf_counter()
                if pair is not None:
                    partner = sum(pair) - self._seat.rank
                    collectives.exchange(source, target, partner, partner)
                    self._synchronize()
                    taken[pair].append(time.perf_counter() - began)
        return [(pair, median(seconds[1:])) for pair, seconds in taken.items()]  # the first one connects

    def _buffers(self, elements: Counts, in_place: bool) -> tuple[Tensor, Tensor]:
        together = max(elements.sent, elements.received) if in_place else elements.sent + elements.received
        self._check_memory(together * self._dtype.itemsize)
        if not in_place:
            source = torch.empty(elements.sent, dtype=self._dtype, device=self._device)
            return source, torch.empty(elements.received, dtype=self._dtype, device=self._device)
        buffer = torch.empty(together, dtype=self._dtype, device=self._device)
        if elements.sent == elements.received:
            return buffer, buffer
        collective = self._plan.collective
        first, second = (
            begin(self._seat, elements) for begin in (collective.source_in_place, collective.target_in_place)
        )
        return buffer[first : first + elements.sent], buffer[second : second + elements.received]

    def _wrong(self, source: Tensor, target: Tensor, elements: Counts, in_place: bool) -> int | None:
        """Run the collective once on known data; the wrong elements of this rank's result."""
        collective = self._plan.collective
        # Else a call that did nothing would leave the last right result. In place the source is part of the target.
        target.fill_(NEVER)
        self._data.fill(source, self._seat.rank)
        self._call(source, target)
        if in_place and not collective.in_place:
            return None
        return self._data.count_wrong(target, collective.expected(self._seat, elements))

    def _one_by_one(self, source: Tensor, target: Tensor, expected: float) -> tuple[float, ...]:
        number = self._plan.iterations or _fitting(self._plan.seconds / 2, expected, LEAST_CALLS, MOST_CALLS)
        taken = []
        for _ in range(number):
            self._plan.collective.prepare(source, target, self._seat)
            self._synchronize()
            self._agree(0.0)
            began = time.perf_counter()
            self._plan.collective.run(source, target, self._seat)
            self._synchronize()
            taken.append(time.perf_counter() - began)
        return tuple(taken)

    def _agree(self, value: float) -> float:
        """The largest of all ranks' seconds, known to all; also a barrier."""
        # In whole nanoseconds: where NVLS is forced, NCCL has no maximum of floats (src/include/device.h).
        tensor = torch.tensor([round(value * 1e9)], dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor.item()) / 1e9

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _check_memory(self, needed: int) -> None:
        free = _free_bytes(self._device)
        if needed + _RESERVE_BYTES > free:
            raise UsageError(
                f"{format_size(needed)} of buffers do not fit rank {self._seat.rank}, which has "
                f"{free / 1024**3:.1f} GiB free.",
                "End --sizes earlier.",
            )


def _fitting(seconds: float, each: float, least: int, most: int) -> int:
    return max(least, min(most, math.ceil(seconds / max(each, 1e-9))))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        # torch keeps what a smaller size has freed, and takes from it first.
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise UsageError("/proc/meminfo has no MemAvailable, so free memory is unknown.", "Run on Linux 3.14 or newer.")
