"""Results of a benchmark as `bench` would have measured them, made up: for what is done with results afterwards."""

from __future__ import annotations

import random
from collections.abc import Sequence

from workloads.nccl.definitions import stages
from workloads.nccl.definitions.bandwidth import Percentiles, Row, Timing
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.results.measured import Conditions, Measured
from workloads.nccl.scaling import scaling

SIZES = tuple(1 << power for power in range(10, 34))


def conditions(
    nodes: int = 2, op: str = "all_reduce", backend: str = "nccl", gpus: int = 8, **changes: str
) -> Conditions:
    """Of so many nodes of the A3 Ultra kind; on gloo, of as many ranks without GPUs."""
    ranks = nodes * gpus
    cuda = backend == "nccl"
    return Conditions(
        op=op,
        backend=backend,
        nodes=nodes,
        ranks=ranks,
        hosts=tuple(f"host-{rank // gpus}" for rank in range(ranks)),
        node_of_rank=tuple(rank // gpus for rank in range(ranks)),
        devices=tuple(f"cuda:{rank % gpus}" if cuda else "cpu" for rank in range(ranks)),
        gpus_per_node=gpus if cuda else 0,
        rdma_nics=8 if cuda else 0,
        promised_rdma=cuda,
        average=False,
        started="2026-01-01T00:00:00+00:00",
        machine_type="a3-ultragpu-8g" if cuda else "",
        accelerator="NVIDIA H200" if cuda else "",
        image=changes.get("image", "repository/ray@sha256:1"),
        versions={"torch": "2.15.0", "nccl": changes.get("nccl", "2.30.4")},
        variables={"NCCL_NET": "gIB"},
    )


def timing(seconds: float, ranks: int, blocking: bool = True, wrong: int | None = 0) -> Timing:
    """A mean, and calls one by one around it."""
    return Timing(
        seconds=seconds,
        iterations=20,
        slowest_rank=ranks - 1,
        wrong=wrong,
        rank_seconds=(seconds,) * ranks,
        blocking=Percentiles(
            calls=20,
            slowest_rank=0,
            p50=seconds * 1.02,
            p95=seconds * 1.05,
            p99=seconds * 1.1,
            max=seconds * 1.1,
        )
        if blocking
        else None,
    )


def row(under: Conditions, size: int, out_of_place: Timing, in_place: Timing) -> Row:
    """A row of floats that were summed."""
    return Row(
        op=under.op,
        size=size,
        count=size // 4,
        dtype="float",
        redop="sum",
        root=-1,
        factor=2 * (under.ranks - 1) / under.ranks,
        out_of_place=out_of_place,
        in_place=in_place,
    )


def measured(
    stage: Stage, under: Conditions, draw: random.Random | None = None, slower: float = 1.0, noise: float = 0.01
) -> Measured:
    """A stage that runs as the scaling model has it, times noise, times `slower`.

    Args:
        stage: of which nodes.
        under: op, ranks.
        draw: of the noise: one factor for the whole stage, of a standard deviation of 1 %, and one for each row.
        slower: factor on every time.
        noise: standard deviation of a row's own factor.
    """
    algorithms = ("ring",) if stage.algorithm == stages.RING else scaling.ALGORITHMS
    whole = draw.gauss(1.0, 0.01) if draw else 1.0
    rows = []
    for size in SIZES:
        seconds = scaling.seconds(under.op, size, under.nodes, algorithms=algorithms) * whole * slower
        out, into = (seconds * (draw.gauss(1.0, noise) if draw else scale) for scale in (1.03, 1.0))
        rows.append(row(under, size, timing(out, under.ranks), timing(into, under.ranks)))
    return Measured(stage=stage, conditions=under, rows=tuple(rows), links=(), logs={})


def run(nodes: int = 2, draw: random.Random | None = None, **how: float) -> list[Measured]:
    """Every stage on so many nodes."""
    found: Sequence[Stage] = [stage for round in stages.plan_rounds(nodes, "pairs", ring=True) for stage in round]
    return [measured(stage, conditions(len(stage.nodes)), draw, **how) for stage in found]
