"""List prices of what runs by the hour, from `prices.csv`. Pure.

USD, before tax and any discount. They change: each has the day on which it was read, and whoever shows one shows that.
`make prices` reads them anew.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path

from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.facts.machine import Machine

REGION = "us-central1"
"""Where prices are looked up that are not known of a stack's own region; those of Spot differ too much."""

FILE = Path(__file__).with_suffix(".csv")

RESERVED = "whether used or not, before any commitment"
"""Remark on the price of a reserved node."""

HOURS_OF_A_MONTH = 730
"""By which Google divides prices by the month (Compute Engine documentation, "VM instance pricing")."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """One hour of something."""

    what: str
    """Of what: a fee's name, `e2 vCPU`, `e2 GiB`, or a machine type and the way that it is bought."""
    region: str
    """Where; empty where it is the same in all."""
    usd: float
    """USD."""
    read: date
    """The day on which the source was read, or the first of the month that is all that is known."""
    source: str
    """Who says so."""
    remark: str = ""
    """What whoever sees the price should know."""


def parsed(text: str) -> dict[tuple[str, str], Price]:
    """Prices by what and where, from a table as `prices.csv` is one."""
    found = (
        Price(
            what=row["what"],
            region=row["region"],
            usd=float(row["usd"]),
            read=date.fromisoformat(row["read"]),
            source=row["source"],
            remark=row["remark"],
        )
        for row in csv.DictReader(text.splitlines())
    )
    return {_place(price): price for price in found}


def written(prices: Iterable[Price]) -> str:
    """The table of prices, sorted."""
    columns, text = [field.name for field in fields(Price)], io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([getattr(price, column) for column in columns] for price in sorted(prices, key=_place))
    return text.getvalue()


def _place(price: Price) -> tuple[str, str]:
    return price.what, price.region


PRICES: Mapping[tuple[str, str], Price] = parsed(FILE.read_text(encoding="utf-8"))
"""All that is known, by what and where."""

CONTROL_PLANE, NAT, LOAD_BALANCER = (PRICES[what, ""] for what in ("control plane", "Cloud NAT", "load balancer"))
"""Of a regional cluster; of one address and the virtual machines at rest; of a project's first forwarding rules."""


def gpu_name(machine: Machine, mode: Mode) -> str:
    """What a node with GPUs that is bought in one way is called here; queued nodes are flex-start ones."""
    return f"{machine.name}, {'flex-start' if mode == 'queued' else mode}"


def unit_names(machine: Machine) -> tuple[str, str]:
    """What a vCPU and a GiB of a machine without GPUs are called here."""
    family = machine.name.partition("-")[0]
    return f"{family} vCPU", f"{family} GiB"


def gpu_node(machine: Machine, mode: Mode, region: str) -> Price | None:
    """A node with GPUs, bought in one way; None where no source was found."""
    return _known(gpu_name(machine, mode), region, elsewhere=mode != "spot")


def node(machine: Machine, region: str) -> Price | None:
    """A node without GPUs, on demand; None where no source was found."""
    cpu, gib = (_known(name, region, elsewhere=True) for name in unit_names(machine))
    if cpu is None or gib is None:
        return None
    return Price(
        what=machine.name,
        region=cpu.region,
        usd=machine.vcpus * cpu.usd + machine.memory_gb * gib.usd,
        read=min(cpu.read, gib.read),
        source=cpu.source,
    )


def _known(what: str, region: str, *, elsewhere: bool) -> Price | None:
    return PRICES.get((what, region)) or (PRICES.get((what, REGION)) if elsewhere else None)
