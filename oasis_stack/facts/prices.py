"""List prices of what runs by the hour. Pure.

USD, before tax and any discount. They change: each has the day on which it was read, and whoever shows one shows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.facts.machine import Machine

REGION = "us-central1"
"""Of every price that names no region."""

FILE = "oasis_stack/facts/prices.py"
"""Where somebody who knows newer prices writes them."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """One hour of something."""

    usd: float
    read: date
    """The day on which the source was read, or the first of the month that is all that is known."""
    remark: str = ""


CONTROL_PLANE = Price(usd=0.10, read=date(2026, 10, 1))
"""Of a regional cluster (Google's page of GKE prices, copied)."""

NAT = Price(usd=0.01, read=date(2026, 10, 1))
"""One address and the virtual machines at rest (Google's page of Cloud NAT prices)."""

LOAD_BALANCER = Price(usd=0.025, read=date(2026, 10, 1))
"""The first forwarding rules of a project (Google's page of load balancing prices, copied)."""

_CPU_AND_GIB: Mapping[str, tuple[float, float, date]] = {
    "e2": (0.02181159, 0.00292353, date(2026, 9, 27)),
    "n2": (0.031611, 0.004237, date(2026, 10, 4)),
}
"""A vCPU and a GiB of a family, on demand (Cloud Billing catalogue and Google's page, as public copies have them)."""

_LOCAL_SSD_USD = 12_000 * 0.08 / 730
"""An A3 Ultra node's 12,000 GiB at 0.08 a GiB and month, beside prices that leave it out."""

_SPOT_READ = date(2026, 10, 13)
_A3_ULTRA_SPOT: Mapping[str, float] = {
    "us-central1": 8 * 6.2607,
    "us-east4": 8 * 5.6357,
    "us-west1": 8 * 6.2607,
    "europe-west1": 8 * 6.8944,
    "europe-west4": 8 * 6.8865,
    "asia-south1": 8 * 6.7805,
}
"""A node without local SSD (data set tanod/cloud-gpu-list-prices, of the Cloud Billing catalogue)."""

_HALF_OF_LIST = "inferred: half of the list price; Google announced others for November 2026"

_NODES: Mapping[tuple[str, Mode], Price] = {
    ("a3-ultragpu-8g", "flex-start"): Price(usd=42.40, read=date(2026, 10, 1), remark=_HALF_OF_LIST),
    ("a3-ultragpu-8g", "reservation"): Price(
        usd=84.81, read=date(2026, 9, 17), remark="whether used or not, before any commitment"
    ),
    ("g2-standard-4", "on-demand"): Price(usd=0.707, read=date(2026, 9, 8)),
    ("g2-standard-12", "on-demand"): Price(usd=1.000, read=date(2026, 9, 8)),
    ("g2-standard-4", "spot"): Price(usd=0.361, read=date(2026, 7, 15)),
}
"""Google's page of accelerator-optimized machines, as public copies of it agree; flex-start from the GPU's own price
there and the ratio that other machines have."""


def gpu_node(machine: Machine, mode: Mode, region: str) -> Price | None:
    """A node with GPUs, bought in one way; None where no source was found.

    Args:
        machine: what the node is.
        mode: how it is bought; queued nodes are flex-start ones.
        region: of the node; only Spot is known by region, all else is `REGION`'s.
    """
    if (machine.name, mode) == ("a3-ultragpu-8g", "spot"):
        usd = _A3_ULTRA_SPOT.get(region)
        return None if usd is None else Price(usd=usd + _LOCAL_SSD_USD, read=_SPOT_READ, remark=f"of {region}")
    return _NODES.get((machine.name, "flex-start" if mode == "queued" else mode))


def node(machine: Machine) -> Price | None:
    """A node without GPUs, on demand; None where no source was found."""
    family = _CPU_AND_GIB.get(machine.name.partition("-")[0])
    if family is None:
        return None
    cpu, gib, read = family
    return Price(usd=machine.vcpus * cpu + machine.memory_gb * gib, read=read)
