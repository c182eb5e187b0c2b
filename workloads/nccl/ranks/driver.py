"""The benchmark on Ray: holds the nodes, runs the rounds of stages on them, and gives back what each stage measured.

Each round has processes of its own, because NCCL reads its settings once in a process's life. On NCCL it is run again
by others that are not timed, with a call of each size: they have NCCL write what it chooses, a line for each call.

A rank is an actor on the node of its bundle, which sees all GPUs of that node. Ray would give each actor one visible
GPU; NCCL then cannot see its neighbours' and is slower by orders of magnitude (ray-project/ray issue 61073). The
masking is off and rank r takes device r, as under torchrun.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workloads.cluster import capacity
from workloads.environment import ClusterEnvironment
from workloads.errors import PlaceError, WorkloadError, WorkloadFailedError, first_line
from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Link, Round, Stage, exchanges
from workloads.nccl.logs import debug_log, faults
from workloads.nccl.ranks.failures import RankPlace, answers
from workloads.nccl.ranks.kept_logs import START_SECONDS, KeptLogs
from workloads.nccl.ranks.rank import LINK_CALLS, Facts, Layout, Rank, RankPlan, Sample, conditions_of, row_of
from workloads.nccl.results.measured import Conditions, Measured

MOST_RAIL_ROUNDS = 16
"""Of exchanges between nodes, as 16 partners show a slow one as well as a thousand."""

PAIR_SIZES = 3
"""Of the largest: 4 to 16 GiB, for which `thresholds` speaks. `suspects` looks at the largest alone."""

_GRACE_SECONDS = 30.0
"""How much longer than the process group's own limit the driver waits, so that the clearer error comes first."""

_COMPARED = ("torch", "cuda", "nccl", "gib")
"""Versions that all ranks must share: where NCCL's differ, ranks hang or fail in words that do not say why."""


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
    begin: Callable[[Stage, Conditions], None] = lambda stage, conditions: None,
    show: Callable[[Stage, Row], None] = lambda stage, row: None,
) -> list[Measured]:
    """Measure every size in every stage on the cluster that this process is connected to.

    Args:
        layout: where the ranks are.
        plan: what they do.
        rounds: as `stages.plan_rounds` returns them.
        sizes: in bytes, ascending.
        shorten: leave out the sizes that do not fit a rank's memory, rather than refuse them, and where nodes
            are measured in pairs, of those all but the largest.
        wait_seconds: longest wait for the nodes.
        promise: what the stack says of itself; None outside a stack.
        say: told of the progress before measuring.
        begin: told what a stage runs on, once its ranks have joined.
        show: given each row as it is finished; those of stages side by side, after all of them.

    Raises:
        InfeasibleError, CapacityError: the nodes can never be had, or were not in time.
        StoppedError: a rank died or hung; says which, on which node, and what NCCL's logs say of it. Or the nodes'
            libraries differ, a rank does not see its node's GPUs, or a size does not fit its memory. Or it was
            interrupted: its cause is then a KeyboardInterrupt.
    """
    found: list[Measured] = []
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(capacity.hold([layout.bundle] * layout.nodes, wait_seconds, say))
        hosts = _hosts(group, layout.nodes)
        logs = stack.enter_context(KeptLogs(group, hosts, layout))
        started = partial(_started, group, hosts, layout, plan, logs, say, found)
        for stages in rounds:
            with started(stages, debug_log.PATH) as ranks:
                found += _measured(ranks, sizes, shorten, promise, begin, show)
            if layout.gpus_per_node:
                found[-len(stages) :] = _with_choices(started, found[-len(stages) :])
    return found


def _measured(
    ranks: StageRanks,
    sizes: Sequence[int],
    shorten: bool,
    promise: ClusterEnvironment | None,
    begin: Callable[[Stage, Conditions], None],
    show: Callable[[Stage, Row], None],
) -> list[Measured]:
    """Every size, out of place and in place, then the links; what each stage has measured."""
    stages, plan = ranks.stages, ranks.plan
    alone = len(stages) == 1
    facts = ranks.join()
    conditions = [conditions_of(ranks.layout, plan, *both, promise) for both in zip(stages, facts, strict=True)]
    if alone:
        begin(stages[0], conditions[0])
    room = min(rank["room"] for rank in chain(*facts))
    tables: list[list[Row]] = [[] for _ in stages]
    within = plan.fitting(sizes, len(facts[0]), room, shorten)
    pair = shorten and 1 < len(stages[0].nodes) < ranks.layout.nodes
    for size in within[-PAIR_SIZES:] if pair else within:
        both = [ranks.measure(size, in_place) for in_place in (False, True)]
        for table, *samples in zip(tables, *both, strict=True):
            table.append(row_of(plan, size, *samples))
        if alone:
            show(stages[0], tables[0][-1])
    links = ranks.links() if plan.links else [()] * len(stages)
    ranks.ask("leave")
    texts = ranks.logs.read(stages)
    found = []
    for stage, own, table, pairs in zip(stages, conditions, tables, links, strict=True):
        # A log of each rank of NCCL's, empty where none could be read: a rank that shows nothing must not pass.
        whole = {rank: texts[stage.name].get(rank, "") for rank in range(own.ranks if own.backend == "nccl" else 0)}
        found.append(Measured(stage=stage, conditions=own, rows=tuple(table), links=pairs, logs=whole))
    if not alone:
        for one in found:
            begin(one.stage, one.conditions)
            for row in one.rows:
                show(one.stage, row)
    return found


def _with_choices(
    started: Callable[[Round, str], contextlib.AbstractContextManager[StageRanks]], measured: Sequence[Measured]
) -> list[Measured]:
    """Measurements of a round with what NCCL writes of an untimed call of each size, after what it wrote when timed."""
    untimed = tuple(replace(one.stage, name=f"{one.stage}, untimed") for one in measured)
    with started(untimed, debug_log.CHOICES) as ranks:
        ranks.join()
        for row in measured[0].rows:
            ranks.ask("call", row.size)
        ranks.ask("leave")
        texts = ranks.logs.read(untimed)
    return [
        replace(one, logs={rank: log + texts[stage.name].get(rank, "") for rank, log in one.logs.items()})
        for one, stage in zip(measured, untimed, strict=True)
    ]


@contextlib.contextmanager
def _started(
    group: PlacementGroup,
    hosts: Sequence[str],
    layout: Layout,
    plan: RankPlan,
    logs: KeptLogs,
    say: Callable[[str], None],
    found: Sequence[Measured],
    stages: Round,
    subsystems: str,
) -> Iterator[StageRanks]:
    """The ranks of stages that share no node, in processes of their own for the length of the block.

    Args:
        group: a bundle per node.
        hosts: what to call each node.
        layout: where the ranks are.
        plan: what they do.
        logs: where NCCL writes.
        say: told that they start.
        found: what was measured before; a failure takes it along.
        stages: of one round.
        subsystems: what NCCL writes, as `Keeper.open` has it.
    """
    places = [
        RankPlace(stage, rank, node, hosts[node])
        for stage in stages
        for rank, node in enumerate(layout.nodes_of_ranks(stage))
    ]
    say(f"starting {len(places)} ranks: {', '.join(map(str, stages))}; on a CPU this takes 5 to 20 s")
    remote: Any = ray.remote(Rank)
    actors: list[ActorHandle] = []
    with _explained(found, stages, logs):
        try:
            for stage in stages:
                seats = zip(
                    layout.seats(stage), layout.nodes_of_ranks(stage), logs.open(stage, subsystems), strict=True
                )
                for seat, node, log in seats:
                    rank = remote.options(**options(group, node, layout, stage.algorithm))
                    actors.append(rank.remote(seat, layout, plan, log))
            yield StageRanks(layout, plan, stages, actors, places, logs)
        finally:
            for actor in actors:
                ray.kill(actor)


@contextlib.contextmanager
def _explained(measured: Sequence[Measured], stages: Round, logs: KeptLogs) -> Iterator[None]:
    """A failure within gets what NCCL's logs say of who failed first, and all that would be lost with it."""
    try:
        yield
    except (WorkloadError, RayError, KeyboardInterrupt) as error:
        texts = logs.read(stages)
        origins = [
            f"In NCCL's log of rank {rank} of {stage!r}: {' '.join(map(str, found))}"
            for stage, of in texts.items()
            for rank, found in faults.origins(of).items()
        ]
        told = error if isinstance(error, WorkloadError) else _unforeseen(error)
        stopped = StoppedError(told.problem, " ".join([*origins, told.remedy]))
        stopped.exit_code = told.exit_code
        stopped.measured, stopped.logs = list(measured), texts
        raise stopped from error


def _unforeseen(error: BaseException) -> WorkloadFailedError:
    said = "Interrupted." if isinstance(error, KeyboardInterrupt) else f"Ray failed: {first_line(error)}"
    return WorkloadFailedError(said, "Look at the cluster (`python -m workloads status`); run again.")


class StageRanks:
    """The ranks of a round's stages: each request goes to all of them, and all have answered before the next."""

    def __init__(
        self,
        layout: Layout,
        plan: RankPlan,
        stages: Round,
        actors: Sequence[ActorHandle],
        places: Sequence[RankPlace],
        logs: KeptLogs,
    ) -> None:
        self.layout = layout
        self.plan = plan
        self.stages = stages
        self.logs = logs
        self._actors = actors
        self._places = places

    def ask(
        self,
        method: str,
        *arguments: Any,
        limit: float | None = None,
        patience: float | None = None,
        own: Sequence[tuple[Any, ...]] = (),
    ) -> list[list[Any]]:
        """Call a method of every rank; the answers by stage, of which each has as many ranks.

        Args:
            method: its name.
            arguments: of all ranks.
            limit: seconds; those of one call if None.
            patience: of a rank in a collective, as of `answers`; the plan's if None.
            own: arguments of each rank.
        """
        each = own or [arguments] * len(self._actors)
        futures = [getattr(actor, method).remote(*words) for actor, words in zip(self._actors, each, strict=True)]
        patience = self.plan.timeout_seconds if patience is None else patience
        found = answers(futures, self._places, self._limit() if limit is None else limit, patience)
        return _parts(found, len(found) // len(self.stages))

    def join(self) -> list[list[Facts]]:
        """Let the ranks of each stage meet; what each rank runs on."""
        arrived = list(chain(*self.ask("arrive", limit=START_SECONDS, patience=math.inf)))
        self._places = [replace(place, pid=one["pid"]) for place, one in zip(self._places, arrived, strict=True)]
        check_versions([one["versions"] for one in arrived], self._places)
        each = len(arrived) // len(self.stages)
        opened = [actor.open.remote() for actor in self._actors[::each]]
        meetings = answers(opened, self._places[::each], self._limit(), math.inf)
        # Of the GPUs that Ray gave a node's ranks the first goes to its first rank, and so on.
        nodes = _parts(arrived, self.layout.ranks_per_node)
        gpus = [gpu for node in nodes for gpu in sorted(rank.get("gpu", 0) for rank in node)]
        joined = self.ask("join", own=[(*meetings[place // each], gpu) for place, gpu in enumerate(gpus)])
        return _parts([before | after for before, after in zip(arrived, chain(*joined), strict=True)], each)

    def measure(self, size: int, in_place: bool) -> list[list[Sample]]:
        """Time one size; the samples of each stage."""
        return self.ask("measure", size, in_place, limit=self._limit(self.plan.most_calls))

    def links(self) -> list[tuple[Link, ...]]:
        """The exchanges between pairs of ranks, of each stage; a pair's time is that of the end that waited longer."""
        rounds = exchanges(len(self.stages[0].nodes), self.layout.ranks_per_node, MOST_RAIL_ROUNDS)
        found = []
        for told in self.ask("links", rounds, limit=self._limit(len(rounds) * LINK_CALLS)):
            longest: dict[tuple[int, int], float] = {}
            for pair, seconds in chain(*told):
                longest[pair] = max(seconds, longest.get(pair, 0.0))
            found.append(tuple(Link(ranks=pair, seconds=seconds) for pair, seconds in sorted(longest.items())))
        return found

    def _limit(self, calls: int = 1) -> float:
        """Longest time of a rank that hangs in none of so many calls; one that hangs fails by itself before."""
        return calls * self.plan.timeout_seconds + _GRACE_SECONDS


def _parts(flat: Sequence[Any], each: int) -> list[list[Any]]:
    return [list(flat[first : first + each]) for first in range(0, len(flat), each)]


def check_versions(versions: Sequence[dict[str, str]], places: Sequence[RankPlace]) -> None:
    """Refuse ranks whose libraries differ.

    Args:
        versions: of each rank.
        places: of the same ranks.

    Raises:
        PlaceError: names both versions and a node of each.
    """
    for library in _COMPARED:
        first = versions[0].get(library)
        for own, place in zip(versions, places, strict=True):
            if own.get(library) != first:
                raise PlaceError(
                    f"Different {library} on two nodes: {first} on node {places[0].node} ({places[0].host}), "
                    f"{own.get(library)} on node {place.node} ({place.host}).",
                    "Give all Ray pods one image (`make image`, `pulumi up`, `make restart`) and all nodes one gIB.",
                )


def options(group: PlacementGroup, node: int, layout: Layout, algorithm: str) -> dict[str, Any]:
    """Ray's options for starting a rank.

    Args:
        group: one bundle per node.
        node: its bundle.
        layout: where the ranks are.
        algorithm: what NCCL_ALGO forces; NCCL reads it when a process first uses it, so it is set for the process.
    """
    forced = {"NCCL_ALGO": algorithm} if algorithm else {}
    return {
        "num_cpus": 1,
        "num_gpus": 1 if layout.gpus_per_node else 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, node),
        "runtime_env": {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"} | forced},
        "max_restarts": 0,
    }


def _hosts(group: PlacementGroup, nodes: int) -> list[str]:
    """Host name and Ray's id of each bundle's node."""
    where: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    return [f"{names.get(where[node], 'unknown host')}/{where[node][:8]}" for node in range(nodes)]
