"""From what ranks have measured to lines of the table, and from what they say of themselves to its head."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from workloads.environment import ClusterEnvironment
from workloads.errors import UsageError
from workloads.nccl.definitions.bandwidth import Percentiles, Row, Timing, format_size
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.ranks import measure
from workloads.nccl.ranks.measure import RankPlan, Sample
from workloads.nccl.ranks.rank import Facts, Layout
from workloads.nccl.results.measured import Conditions


def fitting(plan: RankPlan, sizes: Sequence[int], ranks: int, room: int, shorten: bool) -> list[int]:
    """The sizes that can be measured.

    Args:
        plan: what is measured.
        sizes: bytes, rising.
        ranks: over how many the data are divided.
        room: largest size that fits the rank with the least memory.
        shorten: leave out the others, rather than refuse them.

    Raises:
        UsageError: a size does not fit and may not be left out, or none fits.
    """
    divided = [size for size in sizes if measure.counts(plan, size, ranks).parameter]
    if not divided or (len(divided) < len(sizes) and not shorten):
        raise UsageError(
            f"{format_size(sizes[0])} cannot be divided among {ranks} ranks for {plan.collective.name}: the part of "
            "each is a multiple of 16 bytes.",
            f"Start --sizes at {16 * ranks} or more.",
        )
    within = [size for size in divided if size <= room]
    if not within or (len(within) < len(divided) and not shorten):
        raise UsageError(
            f"Two buffers of {format_size(sizes[-1])} do not fit the {2 * room / 1024**3:.1f} GiB of memory that the "
            "fullest rank has left.",
            "End --sizes earlier.",
        )
    return within


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


def row_of(plan: RankPlan, ranks: int, size: int, out_of_place: Timing, in_place: Timing) -> Row:
    """All ranks' measurement of one size, in both places, as a line of the table."""
    collective = plan.collective
    counts = measure.counts(plan, size, ranks)
    return Row(
        op=collective.name,
        size=max(counts.sent, counts.received) * measure.element_size(plan.dtype),
        count=counts.parameter,
        dtype=plan.dtype,
        redop=collective.redop,
        root=collective.root,
        factor=collective.factor(ranks),
        out_of_place=out_of_place,
        in_place=in_place,
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
    )
