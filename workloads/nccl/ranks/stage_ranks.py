"""The ranks of stages that run side by side: started, asked alike, ended."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup

from workloads.errors import PlaceError
from workloads.nccl.definitions.stages import Link, Round, Stage, exchanges
from workloads.nccl.ranks import measure, placement
from workloads.nccl.ranks.failures import RankPlace, answers
from workloads.nccl.ranks.kept_logs import START_SECONDS, KeptLogs
from workloads.nccl.ranks.measure import RankPlan, Sample
from workloads.nccl.ranks.placement import RankActor
from workloads.nccl.ranks.rank import Facts, Layout

MOST_RAIL_ROUNDS = 16
"""Of exchanges between nodes, as 16 partners show a slow one as well as a thousand."""

_GRACE_SECONDS = 30.0
"""How much longer than the process group's own limit the driver waits, so that the clearer error comes first."""

_COMPARED = ("torch", "cuda", "nccl", "gib")
"""Versions that all ranks must share: where NCCL's differ, ranks hang or fail in words that do not say why."""


@dataclass(frozen=True)
class Team:
    """The ranks of one stage."""

    stage: Stage
    actors: list[ActorHandle]
    places: list[RankPlace]


class SideBySide:
    """The ranks of a round's stages: each request goes to all of them, and all have answered before the next."""

    def __init__(self, teams: list[Team], layout: Layout, plan: RankPlan) -> None:
        self._teams = teams
        self._layout = layout
        self._plan = plan
        self._places = [place for team in teams for place in team.places]

    def ask(
        self,
        method: str,
        limit: float,
        arguments: Callable[[Team, int], tuple[Any, ...]] = lambda team, rank: (),
        *,
        patience: float | None = None,
    ) -> list[list[Any]]:
        """Call a method of every rank; the answers by team.

        Args:
            method: its name.
            limit: seconds.
            arguments: of each rank.
            patience: of a rank in a collective, as of `answers`; the plan's if None.
        """
        futures = [
            getattr(actor, method).remote(*arguments(team, rank))
            for team in self._teams
            for rank, actor in enumerate(team.actors)
        ]
        patience = self._plan.timeout_seconds if patience is None else patience
        given = iter(answers(futures, self._places, limit, patience))
        return [[next(given) for _ in team.actors] for team in self._teams]

    def join(self) -> list[list[Facts]]:
        """Let every team meet; what each rank runs on."""
        arrived = self.ask("arrive", START_SECONDS, patience=math.inf)
        known = [one for team in arrived for one in team]
        self._places = [replace(place, pid=one["pid"]) for place, one in zip(self._places, known, strict=True)]
        check_versions([one["versions"] for one in known], self._places)
        opened = [team.actors[0].open.remote() for team in self._teams]
        addresses = answers(opened, [team.places[0] for team in self._teams], self._limit(), math.inf)
        meeting = {team.stage.name: address for team, address in zip(self._teams, addresses, strict=True)}
        gpus = {team.stage.name: self._gpus(facts) for team, facts in zip(self._teams, arrived, strict=True)}
        joined = self.ask(
            "join", self._limit(), lambda team, rank: (*meeting[team.stage.name], gpus[team.stage.name][rank])
        )
        return [
            [{**before, **after} for before, after in zip(*both, strict=True)]
            for both in zip(arrived, joined, strict=True)
        ]

    def measure(self, size: int, in_place: bool) -> list[list[Sample]]:
        """Time one size; the samples of each team."""
        return self.ask("measure", self._limit(measure.most_calls(self._plan)), lambda team, rank: (size, in_place))

    def call(self, size: int) -> None:
        """Let every team make one call of this size, untimed."""
        self.ask("call", self._limit(), lambda team, rank: (size,))

    def leave(self) -> None:
        """Let every team part."""
        self.ask("leave", self._limit())

    def links(self) -> list[tuple[Link, ...]]:
        """The exchanges between pairs of ranks, of each team; a pair's time is that of the end that waited longer."""
        rounds = {
            team.stage.name: exchanges(len(team.stage.nodes), self._layout.ranks_per_node, MOST_RAIL_ROUNDS)
            for team in self._teams
        }
        found = []
        limit = self._limit(max(map(len, rounds.values())) * measure.LINK_CALLS)
        for told in self.ask("links", limit, lambda team, rank: (rounds[team.stage.name],)):
            longest: dict[tuple[int, int], float] = {}
            for pair, seconds in (one for answer in told for one in answer):
                longest[pair] = max(seconds, longest.get(pair, 0.0))
            found.append(tuple(Link(ranks=pair, seconds=seconds) for pair, seconds in sorted(longest.items())))
        return found

    def _limit(self, calls: int = 1) -> float:
        """Longest time of a rank that hangs in none of so many calls; one that hangs fails by itself before."""
        return calls * self._plan.timeout_seconds + _GRACE_SECONDS

    def _gpus(self, facts: list[Facts]) -> list[int]:
        """Device of each rank: of the GPUs that Ray gave a node's ranks the first to its first rank, and so on."""
        if not self._layout.gpus_per_node:
            return [0] * len(facts)
        each = self._layout.ranks_per_node
        nodes = [facts[first : first + each] for first in range(0, len(facts), each)]
        return [gpu for ranks in nodes for gpu in sorted(rank["gpu"] for rank in ranks)]


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


@contextlib.contextmanager
def started(
    group: PlacementGroup,
    hosts: Sequence[str],
    layout: Layout,
    plan: RankPlan,
    stages: Round,
    logs: KeptLogs,
    subsystems: str,
) -> Iterator[list[Team]]:
    """The ranks of stages that share no node, in processes of their own for the length of the block.

    Args:
        group: a bundle per node.
        hosts: what to call each node.
        layout: where the ranks are.
        plan: what they do.
        stages: of one round.
        logs: where NCCL writes.
        subsystems: what it writes, as `Keeper.open` has it.
    """
    remote: Any = ray.remote(RankActor)
    all_actors: list[ActorHandle] = []
    found = []
    try:
        for stage in stages:
            seats = layout.seats(stage)
            nodes = layout.nodes_of_ranks(stage)
            actors = [
                remote.options(**placement.options(group, node, layout, stage.algorithm)).remote(
                    seat, layout, plan, log
                )
                for seat, node, log in zip(seats, nodes, logs.open(stage, subsystems), strict=True)
            ]
            all_actors += actors
            places = [RankPlace(stage, rank, node, hosts[node]) for rank, node in enumerate(nodes)]
            found.append(Team(stage, actors, places))
        yield found
    finally:
        for actor in all_actors:
            ray.kill(actor)
