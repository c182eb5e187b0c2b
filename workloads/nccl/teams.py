"""The ranks of stages that run side by side: started, asked alike, ended; and whose failure it was when one fails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup

from workloads.errors import PlaceError, WorkloadError, WorkloadFailedError, first_line
from workloads.nccl import faults, measure, placement
from workloads.nccl.kept_logs import START_SECONDS, KeptLogs, death
from workloads.nccl.measure import Plan, Sample
from workloads.nccl.placement import Layout, RankActor
from workloads.nccl.stages import Link, Round, Stage, exchanges

MOST_RAIL_ROUNDS = 16
"""Of exchanges between nodes, as 16 partners show a slow one as well as a thousand."""

_GRACE_SECONDS = 30.0
"""How much longer than the process group's own limit the driver waits, so that the clearer error comes first."""

_AFTERMATH_SECONDS = 5.0
"""How long after a first failure others are waited for: the rank that died is heard of after those it left hanging."""

_GIVING_UP_SECONDS = 15.0
"""The same where ranks may have given up waiting for one that hangs, which each does by its own clock."""

_COMPARED = ("torch", "cuda", "nccl", "gib")
"""Versions that all ranks must share: where NCCL's differ, ranks hang or fail in words that do not say why."""

Facts = dict[str, Any]
"""What a rank says of itself: `host.describe`, and what `RankActor.join` adds."""


@dataclass(frozen=True)
class Place:
    """Where one rank of a round is, for messages that name it."""

    stage: Stage
    rank: int
    node: int
    host: str
    """Host name and Ray's node id."""
    pid: int = 0
    """Of its process there, which Ray names its logs by; 0 before it has started."""

    def __str__(self) -> str:
        process = f", process {self.pid}" if self.pid else ""
        return f"rank {self.rank} of {self.stage.name!r}, on node {self.node} ({self.host}{process})"


@dataclass(frozen=True)
class Team:
    """The ranks of one stage."""

    stage: Stage
    actors: list[ActorHandle]
    places: list[Place]


class SideBySide:
    """The ranks of a round's stages: each request goes to all of them, and all have answered before the next."""

    def __init__(self, teams: list[Team], layout: Layout, plan: Plan) -> None:
        self._teams = teams
        self._layout = layout
        self._plan = plan
        self._places = [place for team in teams for place in team.places]

    def ask(
        self, method: str, limit: float, arguments: Callable[[Team, int], tuple[Any, ...]] = lambda team, rank: ()
    ) -> list[list[Any]]:
        """Call a method of every rank and wait for so many seconds; the answers by team."""
        futures = [
            getattr(actor, method).remote(*arguments(team, rank))
            for team in self._teams
            for rank, actor in enumerate(team.actors)
        ]
        given = iter(answers(futures, self._places, limit, self._plan.timeout_seconds))
        return [[next(given) for _ in team.actors] for team in self._teams]

    def join(self) -> list[list[Facts]]:
        """Let every team meet; what each rank runs on."""
        arrived = self.ask("arrive", START_SECONDS)
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
        for answers in self.ask("links", limit, lambda team, rank: (rounds[team.stage.name],)):
            longest: dict[tuple[int, int], float] = {}
            for pair, seconds in (one for answer in answers for one in answer):
                longest[pair] = max(seconds, longest.get(pair, 0.0))
            found.append(tuple(Link(ranks=pair, seconds=seconds) for pair, seconds in sorted(longest.items())))
        return found

    def _limit(self, calls: int = 1) -> float:
        """How long a rank may take that hangs in none of so many calls; one that hangs fails by itself before."""
        return calls * self._plan.timeout_seconds + _GRACE_SECONDS

    def _gpus(self, facts: list[Facts]) -> list[int]:
        """Device of each rank: of the GPUs that Ray gave a node's ranks the first to its first rank, and so on."""
        if not self._layout.gpus_per_node:
            return [0] * len(facts)
        each = self._layout.ranks_per_node
        nodes = [facts[first : first + each] for first in range(0, len(facts), each)]
        return [gpu for ranks in nodes for gpu in sorted(rank["gpu"] for rank in ranks)]


def check_versions(versions: Sequence[dict[str, str]], places: Sequence[Place]) -> None:
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


@contextmanager
def started(
    group: PlacementGroup, hosts: Sequence[str], layout: Layout, plan: Plan, stages: Round, logs: KeptLogs
) -> Iterator[list[Team]]:
    """The ranks of stages that share no node, in processes of their own for the length of the block.

    Args:
        group: a bundle per node.
        hosts: what to call each node.
        layout: where the ranks are.
        plan: what they do.
        stages: of one round.
        logs: where NCCL writes.
    """
    remote: Any = ray.remote(RankActor)
    all_actors: list[ActorHandle] = []
    found = []
    try:
        for stage in stages:
            seats = layout.seats(stage)
            nodes = [stage.nodes[seat.rank // layout.ranks_per_node] for seat in seats]
            actors = [
                remote.options(**placement.options(group, node, layout, stage.algorithm)).remote(
                    seat, layout, plan, log
                )
                for seat, node, log in zip(seats, nodes, logs.open(stage), strict=True)
            ]
            all_actors += actors
            places = [Place(stage, rank, node, hosts[node]) for rank, node in enumerate(nodes)]
            found.append(Team(stage, actors, places))
        yield found
    finally:
        for actor in all_actors:
            ray.kill(actor)


def answers(futures: Sequence[ray.ObjectRef[Any]], places: Sequence[Place], limit: float, patience: float) -> list[Any]:
    """The results of all ranks; the first failure of any ends the wait for the others, which would hang without it.

    Args:
        futures: one of each rank.
        places: of the same ranks.
        limit: seconds.
        patience: seconds after which a rank gives up waiting for another in a collective. On NCCL its process ends.

    Raises:
        WorkloadError: a rank's own.
        WorkloadFailedError: a rank died, failed or gave no answer; says which, and on which node.
    """
    waiting, failed = list(futures), dict[int, BaseException]()
    began, late = time.monotonic(), False
    deadline = began + limit
    while waiting and (left := deadline - time.monotonic()) > 0:
        done, waiting = ray.wait(waiting, timeout=left)
        for future in done:
            if (error := _error(future)) is not None:
                if not failed:
                    late = time.monotonic() - began >= patience
                    deadline = time.monotonic() + (_GIVING_UP_SECONDS if late else _AFTERMATH_SECONDS)
                failed[futures.index(future)] = error
        if not late and any(isinstance(error, RayActorError | WorkloadError) for error in failed.values()):
            break
    silent = [futures.index(future) for future in waiting]
    if failed:
        raise_failure(failed, silent, places, late)
    if silent:
        raise _hung(silent, places, f"within {limit:.0f} s")
    return ray.get(list(futures))


def _error(future: ray.ObjectRef[Any]) -> BaseException | None:
    try:
        ray.get(future)
    except RayTaskError as error:
        return error.cause or error
    except RayError as error:
        return error
    return None


def raise_failure(
    failed: Mapping[int, BaseException], silent: Sequence[int], places: Sequence[Place], late: bool
) -> NoReturn:
    """Raise the failure that explains the others: a rank's own message, else a hang, a death, or the first one.

    Args:
        failed: by place, in the order in which they were heard of; at least one.
        silent: places that gave no answer.
        places: of all ranks.
        late: whether ranks may have given up waiting for another, so that the one that hangs is not among `failed`.
    """
    for error in failed.values():
        if isinstance(error, WorkloadError):
            raise error from None
    if late and 0 < len(silent) < len(failed):
        raise _hung(silent, places, "when the ranks that waited for it in a collective gave up")
    dead = [index for index, error in failed.items() if isinstance(error, RayActorError)]
    index = (dead or list(failed))[0]
    error = failed[index]
    reason = death(error) if index in dead else first_line(error)
    told = silent and (late or not dead)
    others = f" Silent since: {'; '.join(str(places[other]) for other in silent)}." if told else ""
    raise WorkloadFailedError(
        f"R{str(places[index])[1:]} {'died' if dead else 'failed'}: {reason}{others}",
        f"{faults.advice(str(error))} The other ranks were ended. The node's log (`python -m workloads status`, the "
        "dashboard) has more; run again.".lstrip(),
    ) from error


def _hung(silent: Sequence[int], places: Sequence[Place], when: str) -> WorkloadFailedError:
    error = WorkloadFailedError(
        f"No answer from {'; '.join(str(places[index]) for index in silent)} {when}.",
        "All ranks were ended. Look at those nodes (`python -m workloads status`, the dashboard); run again.",
    )
    error.__cause__ = TimeoutError(when)
    return error
