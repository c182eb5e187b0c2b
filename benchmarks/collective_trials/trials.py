"""The trials of `benchmarks.collectives`: gloo ranks of the benchmark itself, beside a bare loop, killed, or slowed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray.util.placement_group import placement_group_table

from benchmarks.harness.figures import Record
from benchmarks.harness.trials import until
from tests.support import gloo
from tests.support.processes import descendants
from workloads.nccl.definitions.collectives import Seat
from workloads.nccl.definitions.stages import Round, plan_rounds
from workloads.nccl.ranks import driver
from workloads.nccl.ranks.rank import Layout, Rank, RankPlan
from workloads.nccl.results import suspects
from workloads.nccl.results.measured import Measured

CPUS = 4
KILLED_RANKS, SLOW_RANKS = 2, 4
PATIENCE_SECONDS = 120.0
OVERHEAD_SECONDS = 1800.0
"""How long all pairs of one size may take."""

_DUTY = """
import os, signal, sys, time
rank = os.getppid()
while os.getppid() == rank:
    os.kill(rank, signal.SIGSTOP)
    time.sleep(0.008)
    os.kill(rank, signal.SIGCONT)
    time.sleep(0.002)
"""
"""Program that lets its parent run a fifth of the time."""


def overhead(size: int, pairs: int) -> Record:
    """Ratio of our time per call to a bare loop's, in turns, on two ranks; each time is the slower rank's.

    Args:
        size: bytes per rank.
        pairs: number of pairs of both, in alternating order.
    """
    iterations = max(8, (256 << 20) // size)
    ours, bare = zip(*gloo.together(2, _Interleaved(size, pairs, iterations), OVERHEAD_SECONDS), strict=True)
    slowest = [[max(each) for each in zip(*times, strict=True)] for times in (ours, bare)]
    ratios = [own / other for own, other in zip(*slowest, strict=True)]
    return {"bytes": size, "iterations": iterations, "seconds": sorted(slowest[1])[pairs // 2], "ratios": ratios}


class _Interleaved:
    """In a rank's process: seconds of a call by our timing and by a bare loop, pair by pair."""

    def __init__(self, size: int, pairs: int, iterations: int) -> None:
        self._size, self._pairs, self._iterations = size, pairs, iterations

    def __call__(self, seat: Seat) -> tuple[list[float], list[float]]:
        rank = gloo.rank(seat, gloo.plan(iterations=self._iterations))
        tensor = torch.ones(self._size // 4)
        ours: list[float] = []
        bare: list[float] = []
        turns: list[Callable[[], None]] = [
            lambda: ours.append(rank.measure(self._size, in_place=True).seconds),
            lambda: bare.append(self._bare(tensor)),
        ]
        for pair in range(self._pairs):
            for turn in turns if pair % 2 else turns[::-1]:
                turn()
        return ours, bare

    def _bare(self, tensor: torch.Tensor) -> float:
        for _ in range(2):  # as many as ours has before its timing
            dist.all_reduce(tensor.zero_())
        dist.barrier()
        began = time.perf_counter()
        for _ in range(self._iterations):
            dist.all_reduce(tensor)
        return (time.perf_counter() - began) / self._iterations


@cache
def undisturbed(folder: Path) -> float:
    """Seconds from the first rank's start to the end of a run that nobody kills; measured once."""
    with _bench(folder, "undisturbed") as process:
        until(_ranks, PATIENCE_SECONDS, "the ranks started")
        began = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        if process.returncode:
            raise RuntimeError(said)
    return time.monotonic() - began


def killed(folder: Path, span: float, chance: random.Random) -> Record:
    """A run with one rank killed at a random moment of its life, and what is left of the run.

    Args:
        folder: folder for its results.
        span: how long such a run lasts.
        chance: random generator for rank and moment.
    """
    name = f"killed-{chance.randrange(1 << 30)}"
    with _bench(folder, name) as process:
        until(_ranks, PATIENCE_SECONDS, "the ranks started")
        wait = chance.uniform(0, span)
        time.sleep(wait)
        if not (ranks := _ranks()):  # faster than the one before: over already
            process.communicate(timeout=PATIENCE_SECONDS)
            return killed(folder, span / 2, chance)
        victim = chance.choice(ranks)
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        took = time.monotonic() - began
    time.sleep(2)  # for processes that Ray ends in its own time
    named = re.search(r"Rank \d of 'all', on node 0 \(\S+?(?:, process (\d+))?\) died", said)
    states = {group["state"] for group in placement_group_table().values()}
    return {
        "killed_after": round(wait, 2),
        "exit_seconds": round(took, 2),
        "code": process.returncode,
        "complete": (folder / name / "all_reduce.jsonl").exists(),
        "named": named is not None,
        "named_process": int(named[1]) if named and named[1] else None,
        "killed_process": victim,
        "left_running": len(_ranks()),
        "groups_removed": states <= {"REMOVED"},
    }


def slowed(rank: int | None) -> Record:
    """A run in this process in which one rank runs a fifth of the time, and the rank that it reports as slow.

    Args:
        rank: which one; None slows nobody.
    """
    layout = Layout(nodes=1, ranks_per_node=SLOW_RANKS, gpus_per_node=0)
    stages = measured(layout, plan_rounds(1, "all", ring=False), Rank if rank is None else _slow(rank))
    found = suspects.suspects(stages)
    links = {f"{a}-{b}": round(1000 * link.seconds, 2) for link in stages[0].links for a, b in [link.ranks]}
    named, ratios = [one.number for one in found], [round(one.ratio, 2) for one in found]
    return {"slow": rank, "named": named, "ratios": ratios, "link_milliseconds": links}


def measured(
    layout: Layout, rounds: Sequence[Round], rank: type[Rank], size: int = 1 << 20, iterations: int = 5
) -> list[Measured]:
    """Measure one size with the benchmark, on the Ray that this process is connected to.

    Args:
        layout: where the ranks are.
        rounds: of `stages.plan_rounds`.
        rank: what a rank is.
        size: bytes.
        iterations: calls that are timed.
    """
    plan: RankPlan = replace(gloo.plan(iterations=iterations), links=True, timeout_seconds=60)
    real = driver.Rank
    driver.Rank = rank
    try:
        return driver.run(
            layout,
            plan,
            rounds,
            [size],
            shorten=False,
            wait_seconds=60,
            promise=None,
            say=lambda line: None,
        )
    finally:
        driver.Rank = real


def _slow(slow: int) -> type[Rank]:
    class Slowed(Rank):
        """A rank; one of them is stopped four fifths of the time."""

        def __init__(self, seat: Seat, layout: Layout, plan: RankPlan, log: Mapping[str, str]) -> None:
            super().__init__(seat, layout, plan, log)
            self._brake = subprocess.Popen([sys.executable, "-c", _DUTY]) if seat.rank == slow else None

    return Slowed


@contextlib.contextmanager
def _bench(folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """The command itself, on this process's Ray."""
    words = [
        *("bench", "--address", ray.get_runtime_context().gcs_address, "--nodes", "1"),
        *("--ranks-per-node", str(KILLED_RANKS), "--sizes", "1K:16M:8", "--results", str(folder), "--name", name),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "workloads", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ranks() -> list[int]:
    """Processes of the ranks on this process's Ray."""
    return [pid for pid, line in descendants(os.getpid()).items() if line.startswith("ray::Rank")]
