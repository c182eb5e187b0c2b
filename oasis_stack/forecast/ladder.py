"""The questions about a stack's ladder, and what the answers say about each rung, other zones and its order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.forecast import advice
from oasis_stack.forecast.advice import MODELS, Chance, Question
from oasis_stack.forecast.answers import Answers
from oasis_stack.forecast.proposal import Rung, cheapest_order
from oasis_stack.preflight import quotas
from oasis_stack.preflight.google import Ask, Google
from oasis_stack.settings import cost
from oasis_stack.settings.schema import GpuSettings, Settings

WINDOW_DAYS = (1, 7)
"""Lengths of reservation that are asked about: the shortest that calendar mode has, and a week."""

_Said = TypeVar("_Said")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a forecast is of."""

    settings: Settings
    gpu: GpuSettings
    entries: tuple[CapacityEntry, ...]
    """The rungs, in their order."""
    nodes: int | None
    """Of a job; None for as many as each rung may have."""

    @property
    def called(self) -> str:
        """What it is, in words."""
        return f"{self.gpu.machine_type} in {self.settings.zone}"

    @property
    def elsewhere(self) -> list[str]:
        """Other zones that offer the machine type."""
        return [zone for zone in self.gpu.machine.zones if zone != self.settings.zone]

    @property
    def by_chance(self) -> list[CapacityEntry]:
        """The rungs whose nodes may or may not come."""
        return [entry for entry in self.entries if entry.mode in MODELS]

    @property
    def reserved_nodes(self) -> int:
        """Nodes whose reservation is asked about."""
        return min(max(map(self.wanted, self.entries)), advice.MOST_RESERVED)

    def wanted(self, entry: CapacityEntry) -> int:
        """Nodes that are wanted of a rung."""
        return entry.max_nodes if self.nodes is None else min(self.nodes, entry.max_nodes)

    def sizes(self, entry: CapacityEntry) -> list[int]:
        """Numbers of nodes that are asked about: one, and all; a queued job's come together."""
        wanted = self.wanted(entry)
        return [wanted] if entry.mode == "queued" else sorted({1, wanted})

    def capacity(self, entry: CapacityEntry, zone: str, nodes: int) -> Question:
        """The question for so many nodes of a rung that is one of `by_chance`."""
        return advice.capacity(self.gpu.machine_type, zone, MODELS[entry.mode], nodes)

    def preemptions(self) -> Question:
        """The question for how often Spot nodes of the stack's zone were taken back."""
        return advice.preemptions(self.gpu.machine_type, self.settings.zone)

    def prices(self) -> Question:
        """The question for what Spot nodes of the stack's region cost."""
        return advice.prices(self.gpu.machine_type, self.settings.region)

    def windows(self, now: datetime) -> dict[int, Question]:
        """The questions for when nodes can be reserved, by days; none where a reservation is a rung already."""
        if len(self.by_chance) < len(self.entries):
            return {}
        kind, region, nodes = self.gpu.machine_type, self.settings.region, self.reserved_nodes
        return {days: advice.windows(kind, region, nodes, days, now) for days in WINDOW_DAYS}

    def quotas_name(self) -> str:
        """By which the quotas are kept."""
        return f"quotas of {self.settings.project} in {self.settings.region}"

    def questions(self, google: Google, now: datetime) -> dict[str, Ask]:
        """Everything that is asked, by name: what two rungs want to know is asked once."""
        found = list(self.windows(now).values())
        for entry in self.by_chance:
            found += [self.capacity(entry, self.settings.zone, nodes) for nodes in self.sizes(entry)]
            found += [self.capacity(entry, zone, self.wanted(entry)) for zone in self.elsewhere]
        if any(entry.mode == "spot" for entry in self.entries):
            found += [self.preemptions(), self.prices()]
        asked: dict[str, Ask] = {question.name: partial(_answer, google, question) for question in found}
        return {**asked, self.quotas_name(): partial(_quotas, self.settings, google)}


def of(settings: Settings, *, queued: bool | None = None, nodes: int | None = None) -> Subject | None:
    """The subject of a forecast; None where there are no such rungs.

    Args:
        settings: of the stack.
        queued: the rung of the queue alone, or the others alone; None for the whole ladder.
        nodes: of a job; None for as many as each rung may have.
    """
    if settings.gpu is None:
        return None
    entries = tuple(entry for entry in settings.gpu.capacity if queued is None or (entry.mode == "queued") == queued)
    return Subject(settings=settings, gpu=settings.gpu, entries=entries, nodes=nodes) if entries else None


@dataclass(frozen=True, kw_only=True)
class QuotaLeft:
    """What is left of a quota."""

    called: str
    what: str
    """What counts towards it."""
    limit: float
    """GPUs, as all of it."""
    left: float | None
    """None where Google does not tell how many are in use."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The answers about a subject."""

    subject: Subject
    answers: Answers

    def said(self, name: str, reader: Callable[[Any], _Said]) -> tuple[_Said | None, str]:
        """What the answer to a question says, and its age in words; None where it says nothing, or there is none."""
        answer = self.answers.known.get(name)
        said = advice.read(reader, answer.content) if answer else None
        return said, answer.age(self.answers.now) if answer and said else ""

    def quotas(self) -> tuple[list[QuotaLeft], str]:
        """The ladder's quotas whose limits Google tells, and the answer's age in words."""
        said, age = self.said(self.subject.quotas_name(), _quotas_left)
        return said or [], age

    def chance(self, entry: CapacityEntry, zone: str, nodes: int) -> tuple[Chance | None, str]:
        """How likely so many nodes of a rung are to come, and the answer's age in words."""
        return self.said(self.subject.capacity(entry, zone, nodes).name, advice.chance)

    def is_answered(self, entry: CapacityEntry) -> bool:
        """Whether Google has ever answered the questions for a rung, even if it said nothing."""
        place, sizes = self.subject.settings.zone, self.subject.sizes(entry)
        return any(self.subject.capacity(entry, place, nodes).name in self.answers.known for nodes in sizes)

    def elsewhere(self, entry: CapacityEntry) -> list[tuple[str, Chance, str]]:
        """How likely all nodes of a rung are to come in each other zone that Google tells of, the likeliest first, with
        the answers' ages in words."""
        wanted = self.subject.wanted(entry)
        found = [(zone, *self.chance(entry, zone, wanted)) for zone in self.subject.elsewhere]
        told = [(zone, chance, age) for zone, chance, age in found if chance is not None]
        return sorted(told, key=lambda one: -one[1].obtainability)

    def order(self) -> tuple[list[str], list[str], list[str]]:
        """The rungs of the ComputeClass: as they stand, and as they are proposed; and those whose price is not known,
        for which nothing can be proposed."""
        entries = [entry for entry in self.subject.entries if entry.mode != "queued"]
        prices = {entry.pool_name: self._node_hour_usd(entry) for entry in entries}
        rungs = [
            Rung(name=entry.pool_name, node_hour_usd=price, uptime_hours=self._uptime_hours(entry))
            for entry in entries
            if (price := prices[entry.pool_name]) is not None
        ]
        unknown = [name for name, price in prices.items() if price is None]
        return list(prices), [rung.name for rung in cheapest_order(rungs)], unknown

    def _node_hour_usd(self, entry: CapacityEntry) -> float | None:
        if entry.mode == "reservation":
            return 0.0  # paid for anyway
        if entry.mode == "spot" and (told := self._fresh(self.subject.prices(), advice.price_history)):
            return told.usd
        price = cost.rung(self.subject.gpu.machine, entry, self.subject.settings.region).price
        return price.usd if price else None

    def _uptime_hours(self, entry: CapacityEntry) -> float | None:
        """None also for the longest that Google tells of, as it says nothing of how much longer nodes last."""
        if entry.mode != "spot":
            return None
        told = self._fresh(self.subject.capacity(entry, self.subject.settings.zone, 1), advice.chance)
        if told is None or told.uptime is None or told.uptime >= advice.LONGEST_UPTIME:
            return None
        return told.uptime / timedelta(hours=1)

    def _fresh(self, question: Question, reader: Callable[[Any], _Said]) -> _Said | None:
        """What an answer says that is young enough to decide something."""
        answer = self.answers.known.get(question.name)
        return advice.read(reader, answer.content) if answer and not answer.is_stale(self.answers.now) else None


def _answer(google: Google, question: Question) -> Any:
    return google.get("compute", question.path(google.project), body=question.body)


def _quotas(settings: Settings, google: Google) -> list[dict[str, Any]]:
    """Each quota of the ladder that has a limit, as `QuotaLeft` has it."""
    limits = [(held, min(held.said.values())) for held in quotas.left(settings, google)]
    return [
        {
            "called": held.quota.called,
            "what": held.quota.what,
            "limit": limit,
            # A limit may be lowered under what is in use.
            "left": None if held.used is None else max(0.0, limit - held.used),
        }
        for held, limit in limits
        if limit != math.inf
    ]


def _quotas_left(answer: Any) -> list[QuotaLeft]:
    return [QuotaLeft(**one) for one in answer]
