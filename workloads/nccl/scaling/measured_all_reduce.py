"""Measurements that a prediction starts from or is compared with: all-reduce's times, and images per second."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from workloads.errors import UsageError
from workloads.nccl.results import records
from workloads.nccl.scaling import scaling
from workloads.nccl.scaling.scaling import PUBLISHED, TABLED_NODES, Fabric, PredictedStep, Work
from workloads.storage.folders import locate

Curve = Mapping[int, float]
"""Seconds by bytes, the sizes rising."""


@dataclass(frozen=True)
class AllReduce:
    """All-reduce's times: the formula's, or those of a benchmark, carried to other numbers of nodes by the formula."""

    fabric: Fabric = PUBLISHED
    """With as many GPUs per node as were measured."""
    curves: Mapping[int, Curve] = field(default_factory=dict)
    """By number of nodes; where nothing was measured the formula stands alone."""

    @property
    def most_nodes(self) -> int:
        """Up to which number of nodes all-reduce is known."""
        return max(self.curves, default=TABLED_NODES)

    def nearest(self, nodes: int) -> int:
        """The measured number of nodes that a prediction for `nodes` starts from."""
        return min(self.curves, key=lambda measured: (abs(math.log(measured / nodes)), measured))

    def seconds(self, size: int, nodes: int) -> float:
        """Time of an all-reduce of so many bytes: measured, times the formula's ratio of the two numbers of nodes."""
        formula = scaling.seconds("all_reduce", size, nodes, self.fabric)
        if not self.curves:
            return formula
        start = self.nearest(nodes)
        ratio = 1.0 if start == nodes else formula / scaling.seconds("all_reduce", size, start, self.fabric)
        return interpolated(self.curves[start], size) * ratio

    def origin(self, size: int, nodes: int) -> str:
        """Source of that time: NCCL's likely algorithm, or the measured number of nodes."""
        if self.curves:
            start = self.nearest(nodes)
            return "measured" if start == nodes else f"formula, from {start} measured"
        times = scaling.by_algorithm("all_reduce", size, nodes, self.fabric)
        fastest = min(times, key=times.__getitem__)
        return "nvlstree" if fastest == "nvls" and nodes > 1 else fastest

    def step(self, work: Work, nodes: int) -> PredictedStep:
        """One step on all GPUs of so many nodes."""
        return scaling.step(work, nodes, self.fabric.gpus_per_node, self.seconds)

    def nodes_of(self, workers: int) -> int:
        """Nodes that so many workers fill; 0 where they do not fill whole ones."""
        return workers // self.fabric.gpus_per_node if workers % self.fabric.gpus_per_node == 0 else 0


def all_reduce(place: str) -> AllReduce:
    """All-reduce from a file or folder of results: in place, as DDP has it, with the algorithm that NCCL chose.

    Raises:
        UsageError: there is none, or it was not measured with NCCL on several GPUs.
        DataIntegrityError: a file is damaged or cut off.
    """
    times: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    each = set()
    for results in records.load(place):
        for one in results.measured:
            if one.conditions.op != "all_reduce" or one.stage.algorithm or one.conditions.ranks == 1:
                continue
            if one.conditions.backend != "nccl":
                raise UsageError(
                    f"{results.source} was measured with {one.conditions.backend}, and the formula is NCCL's.",
                    "Give results from GPUs, or leave --from out for the published constants.",
                )
            each.add(one.conditions.ranks // one.conditions.nodes)
            for row in one.rows:
                times[one.conditions.nodes][row.size].append(row.in_place.seconds)
    if len(each) != 1:
        raise UsageError(
            f"{place} has {'several numbers of ranks per node' if each else 'no all_reduce of several ranks'}.",
            "Give the results of one `bench` whose nodes are alike.",
        )
    curves = {nodes: {size: median(found) for size, found in sorted(by.items())} for nodes, by in times.items()}
    return AllReduce(replace(PUBLISHED, gpus_per_node=each.pop()), curves)


def interpolated(curve: Curve, size: int) -> float:
    """Seconds of a size between measured ones, on straight lines between the logarithms.

    Below the smallest size latency is all there is; above the largest its bandwidth holds.
    """
    sizes = list(curve)
    if size <= sizes[0]:
        return curve[sizes[0]]
    if size >= sizes[-1]:
        return curve[sizes[-1]] * size / sizes[-1]
    place = bisect_left(sizes, size)
    low, high = sizes[place - 1], sizes[place]
    share = math.log(size / low) / math.log(high / low)
    return curve[low] * (curve[high] / curve[low]) ** share


def images_per_second(places: Sequence[str]) -> dict[int, float]:
    """Median images per second of train runs over all workers, by number of workers.

    Args:
        places: folders of runs, each with its journal, on a disk or gs://.

    Raises:
        UsageError: a folder has no journal with steps.
    """
    from workloads.reporting.history import history

    rates: dict[int, list[float]] = defaultdict(list)
    for place in places:
        workers, warm, before = 0, False, sum(map(len, rates.values()))
        for record in history(locate(place)):
            if record["event"] == "resumed":
                workers, warm = record["world_size"], False
            elif record["event"] == "step" and workers:
                # The first steps compile and connect, and would count as slow ones.
                if warm:
                    rates[workers].append(record["train/images_per_second"])
                warm = True
        if sum(map(len, rates.values())) == before:
            raise UsageError(
                f"{place} has no journal of a run that went beyond its first steps.",
                "Name the folder of a train run, the one that holds `journal`: `python -m workloads runs list`.",
            )
    return {workers: median(found) for workers, found in sorted(rates.items())}
