"""The time of a collective, and the scaling efficiency of training, on any number of nodes: one formula.

Latencies are NCCL's own (src/graph/tuning.cc, 2.19 to 2.28); the rest is fitted on two published tables. A ring within
a node is taken to be as fast as one over the wire: on Hopper with eight 400 Gb/s NICs both measure some 370 GB/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

ALGORITHMS = ("ring", "tree", "nvls")
"""Algorithms among which NCCL chooses; `nvls` on several nodes is its NVLSTree."""

COLLECTIVES = ("all_reduce", "all_gather")

MICROSECOND = 1e-6

RING_SIMPLE, RING_LL128 = (8.4, 3.4, 14.0), (14.0, 1.9, 4.0)
TREE_SIMPLE, TREE_LL128 = (8.4, 4.0, 14.0), (14.0, 1.25, 8.5)
"""By algorithm and protocol: microseconds of a launch, of a step over NVLink and of a step over the network."""

TREE_SHARE = 0.92
"""What a tree reaches of a ring's bandwidth, in the same source."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The constants of one kind of machine."""

    gpus_per_node: int
    latency_factor: float
    """Of NCCL's latencies, which the tuner needs only relative to each other."""
    ring_bandwidth: float
    """Bytes per second of bus bandwidth that a ring reaches with the largest messages."""
    small_bandwidth: float
    """The same with protocol LL128, which trades it for latency."""
    nvls_bandwidth: float
    """The same where NVSwitches add up; above the links' own, as its busbw counts bytes that they are spared."""
    nvls_latency: float
    """Seconds that a call with no data takes."""
    nvls_ramp: float
    """Seconds per square root of a byte: what filling the switches' pipeline costs."""


PUBLISHED = Fabric(
    gpus_per_node=8,
    latency_factor=1.056,
    ring_bandwidth=368.0e9,
    small_bandwidth=59.5e9,
    nvls_bandwidth=476.6e9,
    nvls_latency=29.3e-6,
    nvls_ramp=4.71e-9,
)
"""`python -m benchmarks.scaling` fits them: the ring on GKE's all-gather, NVLS on Azure's all-reduce, on every second
row of each (`benchmarks/published/tables.py`), and writes how far off every other row and table is."""

TABLED_NODES = 4
"""Most nodes of any of those tables; beyond, one figure of 248 nodes is all there is, and a prediction extrapolates."""

Collective = Callable[[int, int], float]
"""Seconds of an all-reduce, by bytes and nodes."""


def seconds(
    op: str, size: int, nodes: int, fabric: Fabric = PUBLISHED, algorithms: Sequence[str] = ALGORITHMS
) -> float:
    """Time of one call with the best of the algorithms.

    Args:
        op: one of `COLLECTIVES`.
        size: bytes, as nccl-tests counts them: of all_gather what a rank receives.
        nodes: all of whose GPUs take part.
        fabric: of the machine.
        algorithms: among which to choose.
    """
    return min(by_algorithm(op, size, nodes, fabric, algorithms).values())


def by_algorithm(
    op: str, size: int, nodes: int, fabric: Fabric = PUBLISHED, algorithms: Sequence[str] = ALGORITHMS
) -> dict[str, float]:
    """Seconds by algorithm, each with the better of its protocols. Of a single GPU it is 0: nothing has to move."""
    ranks = nodes * fabric.gpus_per_node
    if ranks == 1:
        return {"none": 0.0}
    found = {"ring": _ring(op, size, nodes, ranks, fabric)} if "ring" in algorithms else {}
    if op == "all_reduce":
        if "tree" in algorithms and nodes > 1:
            found["tree"] = _tree(size, nodes, fabric)
        if "nvls" in algorithms and fabric.gpus_per_node > 1:
            found["nvls"] = _nvls(size, nodes, ranks, fabric)
    return found


def _ring(op: str, size: int, nodes: int, ranks: int, fabric: Fabric) -> float:
    """2(n-1) steps for all_reduce and n-1 for all_gather; how many of them cross the network is NCCL's own count."""
    reduce = op == "all_reduce"
    steps = 2 * (ranks - 1) if reduce else ranks - 1
    across = 0 if nodes == 1 else 2 * nodes if reduce else nodes - 1
    moved = size * steps / ranks
    return min(
        fabric.latency_factor * MICROSECOND * (launch + (steps - across) * link + across * network) + moved / bandwidth
        for (launch, link, network), bandwidth in (
            (RING_SIMPLE, fabric.ring_bandwidth),
            (RING_LL128, fabric.small_bandwidth),
        )
    )


def _tree(size: int, nodes: int, fabric: Fabric) -> float:
    """Up and down again: a chain through each node's GPUs, and a binary tree over the nodes."""
    chain, height = fabric.gpus_per_node - 1, int(math.log2(nodes))
    return min(
        fabric.latency_factor * MICROSECOND * (launch + 2 * (chain * link + height * network))
        + 2 * size / (TREE_SHARE * bandwidth)
        for (launch, link, network), bandwidth in (
            (TREE_SIMPLE, fabric.ring_bandwidth),
            (TREE_LL128, fabric.small_bandwidth),
        )
    )


def _nvls(size: int, nodes: int, ranks: int, fabric: Fabric) -> float:
    """Reduced in the switches of each node. On two nodes each byte crosses the wire once either way, not twice."""
    height = int(math.log2(nodes))
    latency = fabric.nvls_latency + fabric.latency_factor * MICROSECOND * 2 * height * RING_SIMPLE[2]
    filling = fabric.nvls_ramp * math.sqrt(size)
    if nodes <= 2:
        return latency + filling + size * 2 * (ranks - 1) / ranks / fabric.nvls_bandwidth
    return latency + filling + 2 * size / (TREE_SHARE * fabric.ring_bandwidth)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One GPU's computation in a step, and the gradients that it then has to share. Times in seconds."""

    buckets: tuple[int, ...]
    """Bytes of DDP's buckets, in the order in which their gradients are ready."""
    forward: float
    backward: float
    optimizer: float
    contention: float
    """By which share the backward pass is slower while collectives take some of the GPU."""
    jitter: float
    """Standard deviation of a rank's step."""
    input: float
    """The shortest step that the input pipeline can feed; 0 where it is never the limit."""

    @property
    def alone(self) -> float:
        """A step of one GPU that shares nothing."""
        return max(self.forward + self.backward + self.optimizer, self.input)


@dataclass(frozen=True, kw_only=True)
class PredictedStep:
    """One step on a number of nodes."""

    seconds: float
    communication: float
    """All its collectives together."""
    exposed: float
    """The part of them that the backward pass does not hide."""


def step(work: Work, nodes: int, gpus_per_node: int, all_reduce: Collective) -> PredictedStep:
    """A step in closed form: collectives follow one another, each once its bucket's gradients are ready everywhere.

    Gradients become ready as evenly as their bytes, which is on the safe side for a ConvNet: its last layers, first in
    the backward pass, have most of the bytes.
    """
    ranks = nodes * gpus_per_node
    if ranks == 1:
        return PredictedStep(seconds=work.alone, communication=0.0, exposed=0.0)
    backward = work.backward * (1 + work.contention)
    times = [all_reduce(size, nodes) for size in work.buckets]
    ready = done = 0.0
    for size, taken in zip(work.buckets, times, strict=True):
        ready += backward * size / sum(work.buckets)
        done = max(done, ready) + taken
    exposed = max(0.0, done - backward)
    computed = work.forward + backward + exposed + work.optimizer
    total = max(computed, work.input) + work.jitter * slowest_of(ranks)
    return PredictedStep(seconds=total, communication=sum(times), exposed=exposed)


def efficiency(work: Work, found: PredictedStep) -> float:
    """Images per second of a GPU among many over those of a single GPU."""
    return work.alone / found.seconds


def slowest_of(ranks: int) -> float:
    """Expected largest of that many standard normal values.

    Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958). The familiar sqrt(2 ln n) is its
    limit, and a third too large for 16 ranks.
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
