"""The cost of a run so far: the hours of its nodes, from its history, at their list price."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads.environment import NODE_HOUR_VARIABLE, SUBMITTED_VARIABLE, ClusterEnvironment
from workloads.errors import UsageError
from workloads.reporting.history import Record, starts
from workloads.storage.folders import Folder

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A time that a run spent on nodes, to the last that is known of its workers. It begins as they start, or, on nodes
    that came for this run alone, as Ray comes up there, or the start before it ended. Not in it are the wait for nodes,
    what nodes idle afterwards, and, elsewhere than on such nodes, what a kill took since the newest checkpoint."""

    began: float
    """Unix time."""
    ended: float
    """Likewise."""
    workers: int
    nodes: int
    """Counted whole, also where another run had GPUs of theirs."""
    node_hour_usd: float | None
    """Price of an hour of one of them, as it was known then; None where it was not."""
    budget: float | None
    """USD of the budget that ended it, just before they were spent; None where something else did."""

    @property
    def node_hours(self) -> float:
        """Hours, of all nodes together."""
        return self.nodes * (self.ended - self.began) / HOUR

    @property
    def usd(self) -> float | None:
        """USD; None where the price was not known."""
        return None if self.node_hour_usd is None else self.node_hours * self.node_hour_usd


@dataclass(frozen=True)
class Budget:
    """What a run may cost, and when that is spent."""

    usd: float
    """Of all its attempts together."""
    until: float
    """Unix time at which the nodes of this one have used up what the earlier ones left."""

    @classmethod
    def of(cls, most: float | None, spent: float, stay: Record) -> Budget | None:
        """The budget of a start; None without a limit.

        Args:
            most: USD; None for no limit.
            spent: USD of the starts before it.
            stay: `began`, `nodes` and `node_hour_usd` of this one.
        """
        if most is None:
            return None
        return cls(most, stay["began"] + (most - spent) / (stay["nodes"] * stay["node_hour_usd"]) * HOUR)


def stays(folder: Folder) -> list[Stay]:
    """All that a run's history tells of, oldest first; releases that kept no number of nodes left nothing to count.

    Args:
        folder: of the run; it may not exist.
    """
    return [stay for records in starts(folder) if (stay := _stay(records)) is not None]


def usd(counted: Sequence[Stay]) -> float:
    """USD of all whose price was known."""
    return sum(stay.usd or 0.0 for stay in counted)


def paid_since(joined: float, counted: Sequence[Stay]) -> float:
    """When a start's own cost begins on nodes of the run's own: as the first of them `joined`, unix time, or as the
    start before it on them ended."""
    return max([joined, *(one.ended for one in counted)])


def spent(counted: Sequence[Stay], most: float) -> bool:
    """Whether a budget is spent, or was so nearly that a start would do no more than end again."""
    last = counted[-1].budget if counted else None
    return usd(counted) >= most or (last is not None and last >= most)


def node_hour_usd(
    cluster: ClusterEnvironment | None, gpus: int, variables: Mapping[str, str] = os.environ
) -> float | None:
    """Price of an hour of one of a run's nodes, in this process's place; None where nobody has said it.

    Args:
        cluster: the stack's outputs, if this is one.
        gpus: of a node; without any it is no node that the stack knows the price of.
        variables: of the environment.

    Raises:
        UsageError: the variable for it holds no price.
    """
    if given := variables.get(NODE_HOUR_VARIABLE, ""):
        try:
            price = float(given)
        except ValueError:
            price = math.nan
        if not 0 < price < math.inf:
            raise UsageError(
                f"the variable {NODE_HOUR_VARIABLE} is {given!r}; it must be USD an hour, more than 0.",
                "Write a number like 42.40, or remove it for the stack's list price.",
            )
        return price
    if cluster is None or not gpus:
        return None
    return cluster.node_hour_usd(queued="--queue" in variables.get(SUBMITTED_VARIABLE, "").split())


def _stay(records: Sequence[Record]) -> Stay | None:
    first = next((record for record in records if record.get("event") == "resumed"), {})
    if "nodes" not in first:
        return None
    return Stay(
        began=first["began"],
        ended=max(record.get("time", first["began"]) for record in records),
        workers=first["world_size"],
        nodes=first["nodes"],
        node_hour_usd=first["node_hour_usd"],
        budget=next((record["usd"] for record in records if record.get("event") == "budget"), None),
    )
