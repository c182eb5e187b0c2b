"""The ladder order in which a job is expected to cost least. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOST_HOURS = 0.5
"""What a job loses each time that a node is taken from it: half of the time between two checkpoints, and the minutes
until a new node trains. A guess; `runs show` tells of your own."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One way to get nodes, as it is expected to be today."""

    name: str
    """Of its node pool."""
    node_hour_usd: float
    """What a node costs more an hour for being used: 0 for a reservation, which is paid for anyway."""
    uptime_hours: float | None
    """Until Google takes a node back; None where it does not, or does not tell."""

    def useful_hour_usd(self) -> float:
        """What an hour of a job's progress costs on a node; infinite where nodes go before they are of use."""
        if self.uptime_hours is None:
            return self.node_hour_usd
        useful = self.uptime_hours - LOST_HOURS
        return math.inf if useful <= 0 else self.node_hour_usd * self.uptime_hours / useful


def cheapest_order(rungs: Sequence[Rung]) -> tuple[Rung, ...]:
    """The rungs by what an hour of progress costs on their nodes, the cheapest first; of equal ones the first stays
    first.

    How likely nodes are to come plays no part. GKE asks the rungs from the top within minutes, so one that has none
    costs no more than its attempt: in a simulated market orders by likelihood were a quarter dearer and brought nodes
    no sooner (`benchmarks/ladders.py`). Likelihood is for the choice of the place.
    """
    return tuple(sorted(rungs, key=Rung.useful_hour_usd))
