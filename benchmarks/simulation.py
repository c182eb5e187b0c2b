"""DDP's reducer as a simulation of events, rank by rank: what the closed form of `scaling.step` is checked against.

Every rank computes at its own speed in every step. A collective starts when the last rank has its bucket ready and the
one before it is done; the next step of a rank starts when all collectives and its own backward pass are done.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from workloads.nccl.scaling.scaling import Collective, Work

_READY, _DONE = 0, 1


def step_seconds(
    work: Work, nodes: int, gpus_per_node: int, all_reduce: Collective, steps: int, seed: int = 0
) -> float:
    """Mean time of a step, in seconds.

    Args:
        work: of one GPU.
        nodes: how many.
        gpus_per_node: ranks on each.
        all_reduce: seconds of a collective, by bytes and nodes.
        steps: simulated; with jitter the mean is as much surer as there are more of them.
        seed: of the jitter.
    """
    ranks = nodes * gpus_per_node
    draw = random.Random(seed)
    taken = [all_reduce(size, nodes) if ranks > 1 else 0.0 for size in work.buckets]
    computed = work.forward + work.backward + work.optimizer
    starts = [0.0] * ranks
    for number in range(steps):
        # A batch that a step waits for is there at a time that does not depend on how the steps before went.
        starts = [max(start, number * work.input) for start in starts]
        speeds = [max(0.1, 1 + draw.gauss(0.0, work.jitter / computed)) for _ in range(ranks)]
        starts = _Reducer(work, taken, starts, speeds).run()
    return max(*starts, steps * work.input) / steps


@dataclass
class _Reducer:
    """One step of all ranks."""

    work: Work
    taken: list[float]
    """Seconds of each bucket's collective."""
    starts: list[float]
    """When each rank begins."""
    speeds: list[float]
    """By how much each rank takes longer than the mean."""
    _events: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Time, kind, bucket, rank; earliest first."""

    def run(self) -> list[float]:
        """Time at which each rank has finished."""
        work, ranks, last = self.work, len(self.starts), len(self.taken) - 1
        contention = 1 + work.contention if ranks > 1 else 1.0
        waiting = [ranks] * len(self.taken)
        launched, free, end = 0, True, 0.0
        shares = self._ready_shares()
        begun = [start + work.forward * speed for start, speed in zip(self.starts, self.speeds, strict=True)]
        length = [work.backward * contention * speed for speed in self.speeds]
        for rank in range(ranks):
            heapq.heappush(self._events, (begun[rank] + length[rank] * shares[0], _READY, 0, rank))
        while self._events:
            end, kind, bucket, rank = heapq.heappop(self._events)
            if kind == _DONE:
                free = True
            else:
                waiting[bucket] -= 1
                if bucket < last:
                    following = begun[rank] + length[rank] * shares[bucket + 1]
                    heapq.heappush(self._events, (following, _READY, bucket + 1, rank))
            if free and launched <= last and not waiting[launched]:
                free = False
                heapq.heappush(self._events, (end + self.taken[launched], _DONE, launched, -1))
                launched += 1
        return [end + work.optimizer * speed for speed in self.speeds]

    def _ready_shares(self) -> list[float]:
        """Share of the backward pass after which each bucket is ready."""
        whole, sofar, shares = sum(self.work.buckets), 0, []
        for size in self.work.buckets:
            sofar += size
            shares.append(sofar / whole)
        return shares
