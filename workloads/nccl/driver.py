"""The benchmark on Ray: holds the nodes, runs the ladder's rounds on them, and gives back what each stage measured.

Each round has processes of its own, because NCCL reads its settings once in a process's life.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from workloads import capacity
from workloads.environment import ClusterEnvironment
from workloads.errors import UsageError, WorkloadError
from workloads.nccl import faults, kept_logs, measure, placement, teams
from workloads.nccl.bandwidth import Percentiles, Row, Timing, format_size
from workloads.nccl.kept_logs import KeptLogs
from workloads.nccl.measure import Plan, Sample
from workloads.nccl.measured import Measured
from workloads.nccl.placement import Layout
from workloads.nccl.report import Conditions
from workloads.nccl.stages import Round, Stage
from workloads.nccl.teams import Facts, SideBySide, Team


class StoppedError(WorkloadError):
    """The ladder was not climbed to its end; what was measured before, and what NCCL wrote until then, is not lost.

    Its exit code is that of what stopped it, its cause.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        """Describe what stopped it.

        Args:
            problem: for a rank, which one, on which node.
            remedy: what to do next.
        """
        super().__init__(problem, remedy)
        self.measured: Sequence[Measured] = ()
        """The stages that were finished before."""
        self.logs: Mapping[str, Mapping[int, str]] = {}
        """NCCL's, of each rank of the stages that were not finished, by stage; none on gloo."""


def run(
    layout: Layout,
    plan: Plan,
    rounds: Sequence[Round],
    sizes: Sequence[int],
    *,
    shorten: bool,
    wait_seconds: float,
    promise: ClusterEnvironment | None,
    say: Callable[[str], None],
    begin: Callable[[Stage, Conditions], None],
    show: Callable[[Stage, Row], None],
) -> list[Measured]:
    """Measure every size in every stage on the cluster that this process is connected to.

    Args:
        layout: where the ranks are.
        plan: what they do.
        rounds: of `stages.ladder`.
        sizes: bytes, rising.
        shorten: leave out the sizes that do not fit a rank's memory, rather than refuse them.
        wait_seconds: longest wait for the nodes.
        promise: what the stack says of itself; None outside a stack.
        say: told of the progress before measuring.
        begin: told what a stage runs on, once its ranks have joined.
        show: given each row as it is finished; those of stages side by side when their round is.

    Raises:
        InfeasibleError, CapacityError: the nodes cannot come, or did not.
        StoppedError: a rank died or hung; says which, on which node, and what NCCL's logs say of it. Or the nodes'
            libraries differ, a rank does not see its node's GPUs, or a size does not fit its memory.
    """
    found: list[Measured] = []
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(capacity.hold([layout.bundle] * layout.nodes, wait_seconds, say))
        hosts = placement.hosts(group, layout.nodes)
        nccl = layout.gpus_per_node > 0
        logs = stack.enter_context(kept_logs.kept(group, hosts, layout.ranks_per_node, wanted=nccl))
        for stages in rounds:
            say(f"starting {sum(len(layout.seats(stage)) for stage in stages)} ranks: {', '.join(map(str, stages))}")
            screen = _Screen(begin, show, streamed=len(stages) == 1)
            with _explained(found, stages, logs), teams.started(group, hosts, layout, plan, stages, logs) as begun:
                asked = SideBySide(begun, layout, plan)
                facts = asked.join()
                conditions = [conditions_of(layout, plan, *both, promise) for both in zip(begun, facts, strict=True)]
                screen.begin(stages[0], conditions[0])
                within = _sizes(plan, sizes, facts, shorten)
                found += _measured(asked, stages, conditions, plan, within, logs, screen)
            screen.end(found[-len(stages) :])
    return found


class _Screen:
    """A table as it grows; those of stages side by side, which would be mixed up, once they are whole."""

    def __init__(
        self, begin: Callable[[Stage, Conditions], None], show: Callable[[Stage, Row], None], streamed: bool
    ) -> None:
        self._begin = begin
        self._show = show
        self._streamed = streamed

    def begin(self, stage: Stage, conditions: Conditions) -> None:
        if self._streamed:
            self._begin(stage, conditions)

    def row(self, stage: Stage, row: Row) -> None:
        if self._streamed:
            self._show(stage, row)

    def end(self, measured: Sequence[Measured]) -> None:
        if not self._streamed:
            for one in measured:
                self._begin(one.stage, one.conditions)
                for row in one.rows:
                    self._show(one.stage, row)


@contextlib.contextmanager
def _explained(measured: Sequence[Measured], stages: Round, logs: KeptLogs) -> Iterator[None]:
    """A failure within gets what NCCL's logs say of who failed first, and all that would be lost with it."""
    try:
        yield
    except WorkloadError as error:
        texts = logs.read(stages)
        origins = [
            f"In NCCL's log of rank {rank} of {stage!r}: {' '.join(map(str, found))}"
            for stage, of in texts.items()
            for rank, found in faults.origins(of).items()
        ]
        stopped = StoppedError(error.problem, " ".join([*origins, error.remedy]))
        stopped.exit_code = error.exit_code
        stopped.measured, stopped.logs = list(measured), texts
        raise stopped from error


def fitting(plan: Plan, sizes: Sequence[int], ranks: int, room: int, shorten: bool) -> list[int]:
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


def _sizes(plan: Plan, sizes: Sequence[int], facts: Sequence[Sequence[Facts]], shorten: bool) -> list[int]:
    room = min(rank["room"] for own in facts for rank in own)
    return fitting(plan, sizes, max(map(len, facts)), room, shorten)


def _measured(
    asked: SideBySide,
    stages: Round,
    conditions: Sequence[Conditions],
    plan: Plan,
    sizes: Sequence[int],
    logs: KeptLogs,
    screen: _Screen,
) -> list[Measured]:
    """Every size, out of place and in place, then the links; what each stage has measured."""
    tables: list[list[Row]] = [[] for _ in stages]
    for size in sizes:
        both = [asked.measure(size, in_place) for in_place in (False, True)]
        for stage, table, *samples in zip(stages, tables, *both, strict=True):
            timings = [timing(of, plan.average) for of in samples]
            table.append(row_of(plan, len(samples[0]), size, *timings))
            screen.row(stage, table[-1])
    links = asked.links() if plan.links else [()] * len(stages)
    asked.leave()
    texts = logs.read(stages)
    return [
        Measured(stage=stage, conditions=own, rows=tuple(table), links=pairs, logs=_whole(own, texts[stage.name]))
        for stage, own, table, pairs in zip(stages, conditions, tables, links, strict=True)
    ]


def _whole(conditions: Conditions, logs: Mapping[int, str]) -> dict[int, str]:
    """A log of each rank of NCCL's, empty where none could be read: a rank that shows nothing must not pass."""
    return {rank: logs.get(rank, "") for rank in range(conditions.ranks if conditions.backend == "nccl" else 0)}


def row_of(plan: Plan, ranks: int, size: int, out_of_place: Timing, in_place: Timing) -> Row:
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
    layout: Layout, plan: Plan, team: Team, facts: list[Facts], promise: ClusterEnvironment | None
) -> Conditions:
    """What a stage's ranks have said of themselves, and the stack of its machines."""
    on_gpus = promise if layout.gpus_per_node else None
    nics = on_gpus.rdma_nics if on_gpus else 0
    return Conditions(
        op=plan.collective.name,
        backend=layout.backend,
        nodes=len(team.stage.nodes),
        ranks=len(facts),
        hosts=tuple(rank["host"] for rank in facts),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_type=on_gpus.machine_type if on_gpus else "",
        accelerator=facts[0]["accelerator"],
        image=promise.image if promise else "",
        versions=facts[0]["versions"],
        variables=facts[0]["variables"],
        average=plan.average,
        node_of_rank=tuple(place.node for place in team.places),
        devices=tuple(rank["device"] for rank in facts),
        gpus_per_node=layout.gpus_per_node,
        rdma_nics=nics,
        promised_rdma=nics > 0,
    )
