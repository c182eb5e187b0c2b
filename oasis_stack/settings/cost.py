"""The hourly cost of a stack, from list prices, and the check against its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from oasis_stack.facts import prices
from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.facts.machine import Machine, general_purpose
from oasis_stack.facts.prices import Price
from oasis_stack.facts.problem import Problem
from oasis_stack.settings.schema import Settings

OLDEST_DAYS = 90
"""Node prices older than this are not used to judge a stack: Google changes them a few times a year."""


@dataclass(frozen=True, kw_only=True)
class CostItem:
    """An item billed by the hour, with its minimum and maximum count."""

    name: str
    least: int
    most: int
    price: Price | None
    """Price of one item; None if no source was found."""
    region: str
    """Region that the item runs in."""

    @property
    def is_sure(self) -> bool:
        """True if the price is of the item's own region; those of other regions are close, and may be a fifth lower."""
        return self.price is not None and self.price.region in ("", self.region)

    def usd(self, count: int) -> float:
        """USD an hour for `count` items; 0 if no price is known."""
        return count * self.price.usd if self.price else 0.0


@dataclass(frozen=True, kw_only=True)
class HourlyCost:
    """Cost of all that a stack pays for by the hour; disks, storage, builds, logs and traffic come on top."""

    items: tuple[CostItem, ...]

    @property
    def at_rest(self) -> float:
        """USD an hour while nothing runs, including reserved nodes."""
        return sum(item.usd(item.least) for item in self.items)

    @property
    def at_most(self) -> float:
        """USD an hour with every pool at its `max_nodes`."""
        return sum(item.usd(item.most) for item in self.items)

    @property
    def unknown(self) -> list[str]:
        """Names of the items without a known price, which no sum includes."""
        return [item.name for item in self.items if item.price is None]

    @property
    def is_sure_at_rest(self) -> bool:
        """True if every price in `at_rest` is of the stack's own region."""
        return all(item.is_sure for item in self.items if item.least)

    @property
    def is_sure(self) -> bool:
        """True if every price is of the stack's own region."""
        return all(item.is_sure for item in self.items)

    @property
    def read(self) -> tuple[date, date]:
        """The days on which the first and the last price were read."""
        days = [item.price.read for item in self.items if item.price]
        return min(days), max(days)


def hourly_cost(settings: Settings) -> HourlyCost:
    """The hourly cost of a stack."""
    fees = [prices.CONTROL_PLANE, prices.NAT, *([prices.LOAD_BALANCER] if settings.ray.balanced else [])]
    region = settings.region
    always = [CostItem(name=name, least=1, most=1, price=prices.fee(name), region=region) for name in fees]
    for name, pool in (("system", settings.cluster.system_pool), ("CPU", settings.cluster.cpu_pool)):
        price, name = prices.node(general_purpose(pool.machine_type), region), f"{name} pool, {pool.machine_type}"
        always.append(CostItem(name=name, least=pool.min_nodes, most=pool.max_nodes, price=price, region=region))
    gpu = settings.gpu
    rungs = [rung(gpu.machine, entry, region) for entry in gpu.capacity] if gpu else []
    return HourlyCost(items=tuple(item for item in (*always, *rungs) if item.most))


def node_hours(settings: Settings, *, queued: bool) -> list[float | None]:
    """USD an hour of each kind of node that the queue (if `queued`) or the rest of the ladder buys; None if its price
    in the stack's region is not known."""
    if (gpu := settings.gpu) is None:
        return []
    entries = [entry for entry in gpu.capacity if (entry.mode == "queued") == queued]
    bought = [rung(gpu.machine, entry, settings.region) for entry in entries]
    return [item.usd(1) if item.is_sure else None for item in bought]


def rung(machine: Machine, entry: CapacityEntry, region: str) -> CostItem:
    """The nodes of one ladder entry as a cost item."""
    reserved = entry.max_nodes if entry.mode == "reservation" else 0  # billed whether used or not
    price = prices.gpu_node(machine, entry.mode, region)
    return CostItem(name=entry.pool_name, least=reserved, most=entry.max_nodes, price=price, region=region)


def problems(settings: Settings, today: date) -> Iterator[Problem]:
    """Reasons to refuse a stack that has a limit: it could cost more, or its cost is not known."""
    limit = settings.cost.max_hourly_usd
    if limit is None:
        return
    cost = hourly_cost(settings)
    read = "`make prices` reads them from Google; or write them into oasis_stack/facts/prices.csv, or remove the limit"
    if unsure := [item.name for item in cost.items if not item.is_sure]:
        known = f"a limit only where the prices of {settings.region} are known: none was found for {', '.join(unsure)}"
        yield _problem(limit, known, read)
    nodes = [(item.name, item.price.read) for item in cost.items if item.price and item.price.region]
    if old := [f"{name} ({day})" for name, day in nodes if not 0 <= (today - day).days <= OLDEST_DAYS]:
        yield _problem(limit, f"a limit only with prices of the last {OLDEST_DAYS} days, unlike {', '.join(old)}", read)
    if cost.at_most > limit:
        dearest = max(cost.items, key=lambda item: item.usd(item.most))
        yield _problem(
            limit,
            f"at least {math.ceil(cost.at_most)}: the stack could cost {cost.at_most:,.2f} an hour, with every pool at "
            f"its max_nodes, {dearest.usd(dearest.most):,.2f} of it for {dearest.name}",
            "lower some max_nodes, or raise the limit",
        )


def _problem(limit: int, allowed: str, remedy: str) -> Problem:
    return Problem(key="cost.max_hourly_usd", value=limit, allowed=allowed, remedy=remedy)
