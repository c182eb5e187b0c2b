"""What a stack costs by the hour, from list prices, and whether that is more than it may. Pure."""

from __future__ import annotations

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
"""Older prices judge no stack: Google changes them a few times a year."""

SMALL_SHARE = 0.01
"""Of the sum: the age of a price that makes up less does not matter, as that of a load balancer."""


@dataclass(frozen=True, kw_only=True)
class CostItem:
    """Something that is paid for by the hour, with its least and greatest count."""

    name: str
    least: int
    most: int
    price: Price | None
    """Of one; None where no source was found."""


@dataclass(frozen=True, kw_only=True)
class HourlyCost:
    """Of everything in a stack that is paid for by the hour; disks, storage, builds, logs and traffic come on top."""

    items: tuple[CostItem, ...]

    @property
    def at_rest(self) -> float:
        """USD an hour while nothing runs, what is reserved included."""
        return sum(item.least * item.price.usd for item in self.items if item.price)

    @property
    def at_most(self) -> float:
        """USD an hour with every pool at its `max_nodes`."""
        return sum(item.most * item.price.usd for item in self.items if item.price)

    @property
    def unknown(self) -> list[str]:
        """Names of what no price was found for, and no sum holds."""
        return [item.name for item in self.items if item.price is None]

    @property
    def read(self) -> tuple[date, date]:
        """The days on which the first and the last price were read."""
        days = [item.price.read for item in self.items if item.price]
        return min(days), max(days)


def hourly_cost(settings: Settings) -> HourlyCost:
    """What a stack costs by the hour."""
    always = [
        CostItem(name="control plane", least=1, most=1, price=prices.CONTROL_PLANE),
        CostItem(name="Cloud NAT", least=1, most=1, price=prices.NAT),
    ]
    if settings.ray.balanced:
        always.append(CostItem(name="internal load balancer", least=1, most=1, price=prices.LOAD_BALANCER))
    for name, pool in (("system", settings.cluster.system_pool), ("CPU", settings.cluster.cpu_pool)):
        price = prices.node(general_purpose(pool.machine_type), settings.region)
        name = f"{name} pool, {pool.machine_type}"
        always.append(CostItem(name=name, least=pool.min_nodes, most=pool.max_nodes, price=price))
    gpu = settings.gpu
    rungs = [rung(gpu.machine, entry, settings.region) for entry in gpu.capacity] if gpu else []
    return HourlyCost(items=tuple(item for item in (*always, *rungs) if item.most))


def rung(machine: Machine, entry: CapacityEntry, region: str) -> CostItem:
    """The nodes of one way to get GPUs."""
    reserved = entry.max_nodes if entry.mode == "reservation" else 0  # paid for whether it is used or not
    price = prices.gpu_node(machine, entry.mode, region)
    return CostItem(name=entry.pool_name, least=reserved, most=entry.max_nodes, price=price)


def problems(settings: Settings, today: date) -> Iterator[Problem]:
    """Why a stack with a limit may not be made: it costs more, or nobody knows whether it does."""
    limit = settings.cost.max_hourly_usd
    if limit is None:
        return
    key, cost = "cost.max_hourly_usd", hourly_cost(settings)
    again = f"`make prices` reads them from Google; or add them to {prices.FILE.name} by hand, or remove the limit"
    if cost.unknown:
        yield Problem(
            key=key,
            value=limit,
            allowed=f"a limit only where every price is known: none was found for {', '.join(cost.unknown)}",
            remedy=again,
        )
    old = [
        f"{item.name} is of {item.price.read}"
        for item in cost.items
        if item.price
        and item.most * item.price.usd >= SMALL_SHARE * cost.at_most
        and (today - item.price.read).days > OLDEST_DAYS
    ]
    if old:
        yield Problem(
            key=key,
            value=limit,
            allowed=f"a limit only with prices of the last {OLDEST_DAYS} days: that of {', that of '.join(old)}",
            remedy=again,
        )
    if cost.at_most > limit:
        dearest = max(cost.items, key=lambda item: item.most * (item.price.usd if item.price else 0.0))
        yield Problem(
            key=key,
            value=limit,
            allowed=f"at least {cost.at_most:,.2f}, what the stack costs an hour with every pool at its max_nodes; "
            f"{dearest.name} is most of it",
            remedy="lower some max_nodes, or raise the limit",
        )
