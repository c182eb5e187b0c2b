"""One rank of the benchmark: it joins the process group, times a collective, and checks its result.

Ray is imported only where it is asked, because a rank can run without it. The headline figure is for calls back to back
between two synchronisations, as in nccl-tests; single calls, each after a barrier, show the jitter. The check before
the timing makes the connections, anew at each size, so that none is timed.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.cluster import process_group
from workloads.environment import ClusterEnvironment
from workloads.errors import UsageError
from workloads.nccl.definitions import collectives
from workloads.nccl.definitions.bandwidth import Percentiles, Row, Timing, format_size
from workloads.nccl.definitions.collectives import Collective, Counts, Seat
from workloads.nccl.definitions.data_pattern import DTYPES, NEVER, Data
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.ranks import node_facts, own_calls
from workloads.nccl.results.measured import Conditions

LEAST_ITERATIONS = 20
"""Minimum number of calls timed back to back; nccl-tests' default (`-n 20`)."""

MOST_ITERATIONS = 2000
LEAST_CALLS, MOST_CALLS = 10, 200
"""Bounds for the number of calls timed one by one."""

LINK_BYTES = 8 * 1024**2
"""Size of an exchange between two ranks: large enough to show a link's bandwidth rather than its latency."""

LINK_EXCHANGES = 7

LINK_CALLS = 2 * (1 + LINK_EXCHANGES)
"""Calls in one round of exchanges: each after a barrier, and one more to connect."""

_WATCHDOG_SECONDS = 5.0
"""How much longer a wait lasts than a call may, so that torch's watchdog ends what hangs in a call of torch's."""

_RESERVE_BYTES = 512 * 1024**2  # torch's and NCCL's own buffers beside ours

Facts = dict[str, Any]
"""Facts that a rank reports about itself: `node_facts.describe`, and what `Rank.join` adds."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of ranks on nodes."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    """GPUs taken from each node; 0 runs gloo on CPUs."""

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of one node."""
        cpus = {"CPU": float(self.ranks_per_node)}
        return {**cpus, "GPU": float(self.gpus_per_node)} if self.gpus_per_node else cpus

    @property
    def backend(self) -> str:
        """`nccl` on GPUs, `gloo` on CPUs."""
        return "nccl" if self.gpus_per_node else "gloo"

    def nodes_of_ranks(self, stage: Stage) -> tuple[int, ...]:
        """Node of each rank of a stage, by its number in the placement group: node by node."""
        return tuple(node for node in stage.nodes for _ in range(self.ranks_per_node))

    def seats(self, stage: Stage) -> list[Seat]:
        """The ranks of a stage: node by node."""
        ranks = len(stage.nodes) * self.ranks_per_node
        stride = self.ranks_per_node if len(stage.nodes) > 1 else 1
        return [Seat(rank=rank, ranks=ranks, stride=stride) for rank in range(ranks)]


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """The work that is the same on every rank."""

    collective: Collective
    dtype: str = "float"
    """Element type by nccl-tests' name."""
    warmup: int = 10
    """Calls before timing, at every size: the first ones connect and allocate."""
    iterations: int = 0
    """Calls timed at every size; 0 chooses as many as `seconds` need."""
    seconds: float = 0.2
    """How long timing one size lasts where `iterations` is 0; shorter is noisier."""
    blocking: bool = True
    """Also time calls one by one, for half as long."""
    links: bool = True
    """Also time exchanges between pairs of ranks, which name a slow one."""
    average: bool = False
    """The time of a size is the mean over the ranks (nccl-tests -a 1), not the slowest rank's (-a 3)."""
    timeout_seconds: float = 300
    """How long one call may hang before the process group gives up."""

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def most_calls(self) -> int:
        """Number of calls that `Rank.measure` makes where each takes long."""
        timed = self.iterations or LEAST_ITERATIONS
        alone = 2 * (self.iterations or LEAST_CALLS) if self.blocking else 0  # each after a barrier
        checks, barriers = 2, 2
        return checks + self.warmup + barriers + timed + alone

    def counts(self, size: int, ranks: int) -> Counts:
        """Elements that a size asked for comes to, rounded down as nccl-tests does."""
        return self.collective.counts(size // self.element_size, self.element_size, ranks)

    def fitting(self, sizes: Sequence[int], ranks: int, room: int, shorten: bool) -> list[int]:
        """The sizes that can be measured.

        Args:
            sizes: bytes, rising.
            ranks: over how many the data are divided.
            room: largest size that fits the rank with the least memory.
            shorten: leave out the others, rather than refuse them.

        Raises:
            UsageError: a size does not fit and may not be left out, or none fits.
        """
        divided = [size for size in sizes if self.counts(size, ranks).parameter]
        if not divided or (len(divided) < len(sizes) and not shorten):
            raise UsageError(
                f"{format_size(sizes[0])} cannot be divided among {ranks} ranks for {self.collective.name}: the part "
                "of each is a multiple of 16 bytes.",
                f"Start --sizes at {16 * ranks} or more.",
            )
        within = [size for size in divided if size <= room]
        if not within or (len(within) < len(divided) and not shorten):
            raise UsageError(
                f"Two buffers of {format_size(sizes[-1])} do not fit the {2 * room / 1024**3:.1f} GiB of memory that "
                "the fullest rank has left.",
                "End --sizes earlier.",
            )
        return within


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


class Rank:
    """One rank, in the process that this is: an actor of Ray's, but for a subclass that learns its place elsewhere."""

    def __init__(self, seat: Seat, layout: Layout, plan: RankPlan, log: Mapping[str, str]) -> None:
        """Take this seat.

        Args:
            seat: of this rank.
            layout: where the ranks are.
            plan: what they do.
            log: NCCL's settings with which it writes its log; none on gloo.
        """
        os.environ.update(log)  # before NCCL's first use, as it reads these once
        self._seat = seat
        self._layout = layout
        self._plan = plan
        self._dtype = DTYPES[plan.dtype]
        self._data = Data.of(plan.collective.reduces, self._dtype, seat.ranks)
        self._device = torch.device("cpu")
        self._listener: socket.socket | None = None
        self._own_call: own_calls.OwnCall | None = None

    def arrive(self) -> Facts:
        """Facts that this rank finds on its node, before any rank waits for another."""
        if not self._layout.gpus_per_node:
            return node_facts.describe("gloo")
        node_facts.check_gpus(self._layout.gpus_per_node)
        return {**node_facts.describe("nccl"), "gpu": node_facts.assigned_gpu()}

    def open(self) -> tuple[str, int]:
        """On rank 0: open the meeting point; returns its address and port."""
        import ray

        address = ray.util.get_node_ip_address()
        self._listener = process_group.listen(address)
        return address, self._listener.getsockname()[1]

    def join(self, address: str, port: int, gpu: int) -> Facts:
        """Enter the process group on this GPU, once all ranks do; returns what is known once a rank is in it."""
        on_gpu = self._layout.gpus_per_node > 0
        if on_gpu:
            self._device = torch.device("cuda", gpu)
            torch.cuda.set_device(self._device)
        timeout = timedelta(seconds=self._plan.timeout_seconds)
        process_group.join(self._seat.rank, self._seat.ranks, address, port, self._listener, timeout, self._device)
        own = own_calls.communicator(self._device)
        self._own_call = own and own.calls.get(self._plan.collective.name)
        # The ranks of a node share its memory where they have no GPU each; a size takes two buffers.
        free = self._free_bytes() // (1 if on_gpu else self._layout.ranks_per_node)
        return {
            "device": str(self._device),
            "accelerator": torch.cuda.get_device_name(self._device) if on_gpu else "",
            "room": max(0, (free - _RESERVE_BYTES) // 2),
            "own_calls": own is not None,
        }

    def leave(self) -> None:
        """Leave the process group."""
        process_group.leave()

    def measure(self, size: int, in_place: bool) -> Sample:
        """Time one size; every rank calls this alike.

        Raises:
            UsageError: the buffers do not fit this rank's memory.
        """
        elements = self._plan.counts(size, self._seat.ranks)
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
        self._call(*self._buffers(self._plan.counts(size, self._seat.ranks), in_place=True))
        self._synchronize()

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

    def _call(self, source: Tensor, target: Tensor) -> None:
        self._prepare(source, target)
        self._run(source, target)

    def _prepare(self, source: Tensor, target: Tensor) -> None:
        """Copy what a call of torch's is to change in place."""
        if self._own_call is None:
            self._plan.collective.prepare(source, target, self._seat)

    def _run(self, source: Tensor, target: Tensor) -> None:
        if self._own_call is None or source is target:
            self._plan.collective.run(source, target, self._seat)
        else:
            self._own_call(source, target)

    def _back_to_back(self, source: Tensor, target: Tensor, calls: int) -> float:
        """Seconds of so many calls, without the copies before calls that torch has in place only."""
        if source is target or not self._plan.collective.copies or self._own_call is not None:
            began = time.perf_counter()
            for _ in range(calls):
                self._run(source, target)
            self._synchronize()
            return time.perf_counter() - began
        spans = []
        for _ in range(calls):
            self._prepare(source, target)
            begun = self._moment()
            self._run(source, target)
            spans.append((begun, self._moment()))
        self._synchronize()
        return sum(_seconds(*span) for span in spans)

    def _moment(self) -> torch.cuda.Event | float:
        """Now; on a GPU a mark in its stream, which a collective's end holds up: nothing is waited for in between."""
        if self._device.type != "cuda":
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def _buffers(self, elements: Counts, in_place: bool) -> tuple[Tensor, Tensor]:
        together = max(elements.sent, elements.received) if in_place else elements.sent + elements.received
        needed, free = together * self._dtype.itemsize, self._free_bytes()
        if needed + _RESERVE_BYTES > free:
            raise UsageError(
                f"{format_size(needed)} of buffers do not fit rank {self._seat.rank}, which has "
                f"{free / 1024**3:.1f} GiB free.",
                "End --sizes earlier.",
            )
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
        self._synchronize()
        if in_place and not collective.in_place:
            return None
        return self._data.count_wrong(target, collective.expected(self._seat, elements))

    def _one_by_one(self, source: Tensor, target: Tensor, expected: float) -> tuple[float, ...]:
        number = self._plan.iterations or _fitting(self._plan.seconds / 2, expected, LEAST_CALLS, MOST_CALLS)
        taken = []
        for _ in range(number):
            self._prepare(source, target)
            self._synchronize()
            self._agree(0.0)
            began = time.perf_counter()
            self._run(source, target)
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
        """Wait until the device has done what it was given.

        Raises:
            TimeoutError: it takes longer than a call may hang; torch's watchdog sees none of NCCL's own calls.
        """
        if self._device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        limit = self._plan.timeout_seconds + _WATCHDOG_SECONDS
        began = time.monotonic()
        while not done.query():
            if time.monotonic() - began > limit:
                raise TimeoutError(f"{self._plan.collective.name} did not end within {limit:.0f} s")

    def _free_bytes(self) -> int:
        if self._device.type == "cuda":
            # torch keeps what a smaller size has freed, and takes from it first.
            return torch.cuda.mem_get_info(self._device)[0] + torch.cuda.memory_reserved(self._device)
        if sys.platform != "linux":  # which alone says in /proc what is free: half of all is a guess
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024


def _seconds(begun: Any, ended: Any) -> float:
    """Seconds between two moments, once the device has done what stands before them."""
    return begun.elapsed_time(ended) / 1000 if isinstance(begun, torch.cuda.Event) else ended - begun


def _fitting(seconds: float, each: float, least: int, most: int) -> int:
    return max(least, min(most, math.ceil(seconds / max(each, 1e-9))))


def row_of(plan: RankPlan, size: int, out_of_place: Sequence[Sample], in_place: Sequence[Sample]) -> Row:
    """A line of the table: all ranks' samples of one size, in both places."""
    collective, ranks = plan.collective, len(in_place)
    counts = plan.counts(size, ranks)
    return Row(
        op=collective.name,
        size=max(counts.sent, counts.received) * plan.element_size,
        count=counts.parameter,
        dtype=plan.dtype,
        redop=collective.redop,
        root=collective.root,
        factor=collective.factor(ranks),
        out_of_place=timing(out_of_place, plan.average),
        in_place=timing(in_place, plan.average),
    )


def timing(samples: Sequence[Sample], average: bool) -> Timing:
    """All ranks' measurement of one size as one.

    Args:
        samples: one of each rank.
        average: take the mean time of the ranks, not the slowest one's.
    """
    seconds = [sample.seconds for sample in samples]
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    wrong = [sample.wrong for sample in samples if sample.wrong is not None]
    return Timing(
        seconds=sum(seconds) / len(seconds) if average else seconds[slowest],
        iterations=samples[slowest].iterations,
        slowest_rank=slowest,
        wrong=sum(wrong) if len(wrong) == len(samples) else None,
        rank_seconds=tuple(seconds),
        blocking=Percentiles.of([sample.calls for sample in samples]) if samples[0].calls else None,
    )


def conditions_of(
    layout: Layout, plan: RankPlan, stage: Stage, facts: Sequence[Facts], promise: ClusterEnvironment | None
) -> Conditions:
    """Conditions of a stage, by its ranks' own words, and the stack of its machines."""
    on_gpus = promise if layout.gpus_per_node else None
    nics = on_gpus.rdma_nics if on_gpus else 0
    return Conditions(
        op=plan.collective.name,
        backend=layout.backend,
        nodes=len(stage.nodes),
        ranks=len(facts),
        hosts=tuple(rank["host"] for rank in facts),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_type=on_gpus.machine_type if on_gpus else "",
        accelerator=facts[0]["accelerator"],
        image=promise.image if promise else "",
        versions=facts[0]["versions"],
        variables=facts[0]["variables"],
        average=plan.average,
        node_of_rank=layout.nodes_of_ranks(stage),
        devices=tuple(rank["device"] for rank in facts),
        gpus_per_node=layout.gpus_per_node,
        rdma_nics=nics,
        promised_rdma=nics > 0,
        own_calls=facts[0]["own_calls"],
    )
