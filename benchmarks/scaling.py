"""Fits the scaling model on published tables and says how far off it is elsewhere: `python -m benchmarks.scaling`.

The ring's constants are fitted on GKE's all-gather over two nodes, NVLS's on Azure's all-reduce on one, each on every
second row. Every other row and table is a test. The closed form of a training step is then held against a simulation of
DDP's reducer. Nothing is measured here and no clock is read, so that the results are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks import published, simulation
from benchmarks.harness import command
from benchmarks.harness.figures import today
from benchmarks.published import Table
from workloads.nccl.definitions.bandwidth import format_size
from workloads.nccl.scaling import predict, scaling
from workloads.nccl.scaling.scaling import PUBLISHED, Fabric, Work

RESULTS = Path(__file__).with_suffix(".json")

TOLERANCE = 0.2
"""Beyond this share of the published time a row is a miss."""

SIMULATION_TOLERANCE = 0.03
"""How far the closed form may be off the simulation."""

RING = ("latency_factor", "ring_bandwidth", "small_bandwidth")
NVLS = ("nvls_latency", "nvls_ramp", "nvls_bandwidth")

CASES = ((2000.0, 256), (2000.0, 64), (3000.0, 16))
"""Images per second of one GPU and images per step: the last one computes less than it communicates."""

JITTERS = (0.0, 0.005, 0.02)


def fitted() -> Fabric:
    """The constants, each set on every second row of its table, by least squares of the logarithm of time."""
    ring = _fit(published.GKE_ALL_GATHER, RING, ("ring",), PUBLISHED)
    return _fit(published.AZURE_NVSWITCH, NVLS, ("nvls",), ring)


def _fit(table: Table, names: Sequence[str], algorithms: Sequence[str], start: Fabric) -> Fabric:
    rows = list(table.seconds.items())[::2]
    begin = np.log([getattr(start, name) for name in names])

    def with_constants(logarithms: Sequence[float]) -> Fabric:
        values = {name: math.exp(value) for name, value in zip(names, logarithms, strict=True)}
        return dataclasses.replace(start, **values)

    def residuals(logarithms: Sequence[float]) -> list[float]:
        fabric = with_constants(logarithms)
        return [
            math.log(scaling.seconds(table.op, size, table.nodes, fabric, algorithms) / seconds)
            for size, seconds in rows
        ]

    return with_constants([float(value) for value in least_squares(residuals, begin, x_scale=0.1).x])


def residuals(table: Table, every_second: bool) -> dict[str, Any]:
    """Deviation of the model from a table, as shares of the published times.

    Args:
        table: published.
        every_second: leave out the rows that the fit saw.
    """
    rows = list(table.seconds.items())[1::2] if every_second else list(table.seconds.items())
    off = {
        size: scaling.seconds(table.op, size, table.nodes, algorithms=table.algorithms) / seconds - 1
        for size, seconds in rows
    }
    misses = {format_size(size): round(value, 3) for size, value in off.items() if abs(value) > TOLERANCE}
    return {
        "table": table.name,
        "source": table.source,
        "rows": len(off),
        "largest size": round(off[max(off)], 3),
        "median of absolute": round(float(np.median([abs(value) for value in off.values()])), 3),
        "worst": round(max(off.values(), key=abs), 3),
        "misses": misses,
    }


def work(rate: float, batch: int, jitter: float, contention: float = 0.0) -> Work:
    """ConvNeXt-Base, as `bench predict` has it: images per second of one GPU, images per step, shares."""
    return predict.PlannedTraining(model="base", batch=batch, contention=contention, jitter=jitter).work(rate)


def all_reduce(size: int, nodes: int) -> float:
    """Seconds, from the published constants."""
    return scaling.seconds("all_reduce", size, nodes)


def against_simulation(nodes: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """The closed form beside the simulation."""
    found = []
    for rate, batch in CASES:
        for jitter in JITTERS:
            for count in nodes:
                one = work(rate, batch, jitter)
                closed = scaling.step(one, count, PUBLISHED.gpus_per_node, all_reduce).seconds
                events = simulation.step_seconds(one, count, PUBLISHED.gpus_per_node, all_reduce, steps)
                found.append(
                    {"images per second": rate, "batch": batch, "jitter": jitter, "nodes": count}
                    | {"closed form, ms": round(closed * 1e3, 4), "simulation, ms": round(events * 1e3, 4)}
                    | {"off": round(closed / events - 1, 5)}
                )
    return found


def figures(nodes: Sequence[int], steps: int) -> dict[str, Any]:
    """Everything that is reported."""
    tests = [residuals(table, False) for table in published.TESTS]
    held_out = [residuals(table, True) for table in (published.GKE_ALL_GATHER, published.AZURE_NVSWITCH)]
    simulated = against_simulation(nodes, steps)
    rows = sum(one["rows"] for one in (*held_out, *tests))
    misses = sum(len(one["misses"]) for one in (*held_out, *tests))
    return {
        "date": today(),
        "constants in use": dataclasses.asdict(PUBLISHED),
        "constants fitted": {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(fitted()).items()},
        "rows not fitted": rows,
        "of them within 20 %": rows - misses,
        "rows of the fitted tables that the fit did not see": held_out,
        "other tables": tests,
        "closed form against simulation, largest difference": max(abs(one["off"]) for one in simulated),
        "closed form against simulation": simulated,
    }


def missed(found: Mapping[str, Any]) -> list[str]:
    """Aims that were missed. Misses of tables from other systems are listed and no failure."""
    held_out = found["rows of the fitted tables that the fit did not see"]
    off = found["closed form against simulation, largest difference"]
    return [f"{one['table']}: {one['misses']}" for one in held_out if one["misses"]] + (
        [f"the closed form is {off:.1%} off the simulation"] if off > SIMULATION_TOLERANCE else []
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, compare, print and keep; returns 1 if a figure is not as it must be."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 16, 128], help="simulated (1 2 4 16 128)")
    parser.add_argument("--steps", type=int, default=50, help="of each simulation (50)")
    given = parser.parse_args(arguments)
    found = figures(given.nodes, given.steps)
    return command.conclude(given.results, found, missed(found))


if __name__ == "__main__":
    command.run(main)
