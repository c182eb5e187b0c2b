"""The benchmark on Ray: holds the nodes, runs the rounds of stages on them, and gives back what each stage measured.

Each round has processes of its own, because NCCL reads its settings once in a process's life. On NCCL it is run again
by others that are not timed, with a call of each size: they have NCCL write what it chooses, a line for each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ray.util.placement_group import PlacementGroup

from workloads.cluster import capacity
from workloads.environment import ClusterEnvironment
from workloads.errors import WorkloadError
from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Round, Stage
from workloads.nccl.logs import debug_log, faults
from workloads.nccl.ranks import kept_logs, placement, rows, stage_ranks
from workloads.nccl.ranks.kept_logs import KeptLogs
from workloads.nccl.ranks.measure import RankPlan
from workloads.nccl.ranks.rank import Facts, Layout
from workloads.nccl.ranks.stage_ranks import SideBySide
from workloads.nccl.results.measured import Conditions, Measured


class StoppedError(WorkloadError):
    """Not every stage was run; what was measured before, and what NCCL wrote until then, is not lost.

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
    plan: RankPlan,
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
        rounds: of `stages.plan_rounds`.
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
        logs = stack.enter_context(kept_logs.kept(group, hosts, layout.ranks_per_node, wanted=layout.gpus_per_node > 0))
        held = _Held(group, hosts, layout, plan, logs, say)
        for stages in rounds:
            screen = _Screen(begin, show, streamed=len(stages) == 1)
            with held.ranks(stages, debug_log.PATH, found) as asked:
                facts = asked.join()
                conditions = _conditions(layout, plan, stages, facts, promise)
                screen.begin(stages[0], conditions[0])
                within = _sizes(plan, sizes, facts, shorten)
                found += _measured(asked, stages, conditions, plan, within, logs, screen)
            screen.end(found[-len(stages) :])
            if layout.gpus_per_node:
                found[-len(stages) :] = held.with_choices(stages, within, found)
    return found


@dataclass(frozen=True)
class _Held:
    """The nodes while they are held, and the logs of their ranks."""

    group: PlacementGroup
    hosts: Sequence[str]
    layout: Layout
    plan: RankPlan
    logs: KeptLogs
    say: Callable[[str], None]

    @contextlib.contextmanager
    def ranks(self, stages: Round, subsystems: str, found: Sequence[Measured]) -> Iterator[SideBySide]:
        """The ranks of a round for the length of the block; a failure of theirs takes along what was found before."""
        ranks = sum(len(self.layout.seats(stage)) for stage in stages)
        self.say(f"starting {ranks} ranks: {', '.join(map(str, stages))}; on a CPU this takes 5 to 20 s")
        begun = stage_ranks.started(self.group, self.hosts, self.layout, self.plan, stages, self.logs, subsystems)
        with _explained(found, stages, self.logs), begun as started:
            yield SideBySide(started, self.layout, self.plan)

    def with_choices(self, stages: Round, sizes: Sequence[int], found: Sequence[Measured]) -> list[Measured]:
        """Measurements of these stages, the last ones found, with what NCCL writes of an untimed call of each size.

        It follows what NCCL wrote to those that were timed.
        """
        untimed = tuple(replace(stage, name=f"{stage}, untimed") for stage in stages)
        with self.ranks(untimed, debug_log.CHOICES, found) as asked:
            asked.join()
            for size in sizes:
                asked.call(size)
            asked.leave()
            texts = self.logs.read(untimed)
        return [
            replace(one, logs={rank: log + texts[stage.name].get(rank, "") for rank, log in one.logs.items()})
            for one, stage in zip(found[-len(stages) :], untimed, strict=True)
        ]


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


def _conditions(
    layout: Layout, plan: RankPlan, stages: Round, facts: Sequence[Sequence[Facts]], promise: ClusterEnvironment | None
) -> list[Conditions]:
    return [rows.conditions_of(layout, plan, *both, promise) for both in zip(stages, facts, strict=True)]


def _sizes(plan: RankPlan, sizes: Sequence[int], facts: Sequence[Sequence[Facts]], shorten: bool) -> list[int]:
    room = min(rank["room"] for own in facts for rank in own)
    return rows.fitting(plan, sizes, max(map(len, facts)), room, shorten)


def _measured(
    asked: SideBySide,
    stages: Round,
    conditions: Sequence[Conditions],
    plan: RankPlan,
    sizes: Sequence[int],
    logs: KeptLogs,
    screen: _Screen,
) -> list[Measured]:
    """Every size, out of place and in place, then the links; what each stage has measured."""
    tables: list[list[Row]] = [[] for _ in stages]
    for size in sizes:
        both = [asked.measure(size, in_place) for in_place in (False, True)]
        for stage, table, *samples in zip(stages, tables, *both, strict=True):
            timings = [rows.timing(of, plan.average) for of in samples]
            table.append(rows.row_of(plan, len(samples[0]), size, *timings))
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
