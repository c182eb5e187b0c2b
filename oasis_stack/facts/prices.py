"""List prices from `prices.csv`: hourly for what runs, monthly for what is stored.

In USD, before tax and any discount. Prices change: each has the day on which it was read, which is shown with it.
`make prices` updates those of nodes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path

from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.facts.machine import Machine

REGION = "us-central1"
"""Where prices are looked up that are not known of a stack's own region; those of Spot differ too much."""

FILE = Path(__file__).with_suffix(".csv")
TABLE = "oasis_stack/facts/prices.csv"
"""The table, by its path in the checkout."""
_REMEDY = f"correct it, or restore the committed one: `git checkout {TABLE}`"

CONTROL_PLANE, NAT, LOAD_BALANCER = "control plane", "Cloud NAT", "load balancer"
"""Fees: of a regional cluster; of one address and the virtual machines at rest; of a project's first forwarding
rules."""

STORED, IMAGES = "bucket, GB and month", "registry, GB and month"
SECRET, KEY = "secret version, month", "key version, month"
"""What a month costs of what lies there: standard storage, a repository's content, and each active version of the other
two."""

RESERVED = "whether used or not, before any commitment"
"""Remark on the price of a reserved node."""

HOURS_OF_A_MONTH = 730
"""By which Google divides prices by the month (Compute Engine documentation, "VM instance pricing")."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """One hour of something that runs, or a month of what lies."""

    what: str
    """Of what: a fee's name, `e2 vCPU`, `e2 GiB`, a machine type and the way it is bought, `STORED` or its like."""
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


class PriceTableError(ValueError):
    """A line of the table of prices that does not read."""


def parsed(text: str) -> dict[tuple[str, str], Price]:
    """Prices by what and where, from a table as `prices.csv` is one.

    Raises:
        PriceTableError: a line is no price, or a fee that every stack pays is missing.
    """
    found: dict[tuple[str, str], Price] = {}
    rows = csv.DictReader(text.splitlines())
    for row in rows:
        try:
            price = Price(
                what=row["what"],
                region=row["region"],
                usd=float(row["usd"]),
                read=date.fromisoformat(row["read"]),
                source=row["source"],
                remark=row["remark"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PriceTableError(f"{TABLE}, line {rows.line_num}, is not a price ({error}); {_REMEDY}") from None
        if not 0 < price.usd < math.inf:
            raise PriceTableError(f"{TABLE}, line {rows.line_num}: {row['usd']} is not a price; {_REMEDY}")
        found[_place(price)] = price
    if missing := [what for what in (CONTROL_PLANE, NAT, LOAD_BALANCER) if (what, "") not in found]:
        raise PriceTableError(f"{TABLE} lacks {', '.join(missing)}; {_REMEDY}")
    return found


def written(prices: Iterable[Price]) -> str:
    """The table of prices, sorted."""
    columns, text = [field.name for field in fields(Price)], io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([getattr(price, column) for column in columns] for price in sorted(prices, key=_place))
    return text.getvalue()


def _place(price: Price) -> tuple[str, str]:
    return price.what, price.region


@cache
def known() -> Mapping[tuple[str, str], Price]:
    """All prices of the table, by what and where. Raises PriceTableError."""
    return parsed(FILE.read_text(encoding="utf-8"))


def fee(what: str) -> Price:
    """One of the fees that are the same everywhere: `CONTROL_PLANE`, `NAT` or `LOAD_BALANCER`."""
    return known()[what, ""]


def lying(what: str, region: str) -> Price | None:
    """What a month costs of `STORED`, `IMAGES`, `SECRET` or `KEY`; None where the table has nothing of it."""
    return known().get((what, "")) or _known(what, region, elsewhere=True)


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
        region=cpu.region if cpu.region != region else gib.region,
        usd=machine.vcpus * cpu.usd + machine.memory_gb * gib.usd,
        read=min(cpu.read, gib.read),
        source=cpu.source,
    )


def _known(what: str, region: str, *, elsewhere: bool) -> Price | None:
    return known().get((what, region)) or (known().get((what, REGION)) if elsewhere else None)
