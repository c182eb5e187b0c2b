"""`prices`: reads the prices that a stack's cost needs from Google's catalogue into `oasis_stack/facts/prices.csv`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from oasis_stack import live_state
from oasis_stack.command_line import stack_file
from oasis_stack.command_line.external_program import ProgramError
from oasis_stack.facts import prices
from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.facts.machine import LOCAL_SSD_GB, Machine, general_purpose
from oasis_stack.facts.prices import HOURS_OF_A_MONTH, Price
from oasis_stack.settings.schema import Settings

COMPUTE_ENGINE = "6F81-5844-456A"
"""Compute Engine in the Cloud Billing catalogue (its REST reference, `services.skus.list`, example)."""

SOURCE = "Cloud Billing catalogue"

_GPUS = {"nvidia-h200-141gb": "(?:Nvidia )?H200 141GB GPU", "nvidia-l4": "Nvidia L4 GPU"}


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """The catalogue's names for the parts of a node with GPUs that is bought in one way."""

    usage: str
    """Kind of use, in Google's sense."""
    gpu: str = ""
    """What stands behind the GPU's name."""
    host: str = ""
    """What stands before the host's name."""
    local_ssd: str


_LISTED = Spelling(usage="OnDemand", local_ssd="SSD backed Local Storage")
_FLEX_START = Spelling(
    usage="OnDemand",
    gpu="attached to DWS Defined Duration VMs ",
    host="DWS Defined Duration ",
    local_ssd="DWS Defined Duration SSD backed Local Storage",
)
_SPOT = Spelling(
    usage="Preemptible",
    gpu="attached to Spot Preemptible VMs ",
    host="Spot Preemptible ",
    local_ssd="SSD backed Local Storage attached to Spot Preemptible VMs",
)
_SPELLINGS: Mapping[Mode, Spelling] = {
    "on-demand": _LISTED,
    "reservation": _LISTED,
    "flex-start": _FLEX_START,
    "queued": _FLEX_START,
    "spot": _SPOT,
}
"""Of the GPU and the host as bills have them (a bill of Vertex AI with H100s bought by flex-start, read in 2025-08, and
test data of public readers of bills and of the catalogue for H200 and A3 Ultra); of local SSD as Infracost matches it
(infracost/infracost, internal/resources/google/compute_instance.go). None was read in the catalogue itself: what is not
found is said, and keeps its price.
"""

_FAMILIES = {"e2": "E2", "n2": "N2", "n2d": "N2D AMD"}
"""How it calls the families of machines without GPUs (the same readers)."""

_UNITS = {"h": 1.0, "GiBy.h": 1.0, "GiBy.mo": 1.0 / HOURS_OF_A_MONTH}
"""Units of a price (`usageUnit`), and the hours' part of each."""


@dataclass(frozen=True)
class Sku:
    """One row of the catalogue."""

    description: str
    usage: str
    """OnDemand or Preemptible; flex-start is OnDemand too."""
    regions: frozenset[str]
    hourly_usd: float

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Sku | None:
        """A row as the API has it; None where it has no price by the hour, or none at all."""
        newest = (found.get("pricingInfo") or [{}])[-1].get("pricingExpression", {})
        scale = _UNITS.get(newest.get("usageUnit", ""))
        amounts = [rate.get("unitPrice", {}) for rate in newest.get("tieredRates", ())]
        usd = [int(amount.get("units") or 0) + amount.get("nanos", 0) / 1e9 for amount in amounts]
        paid = next((price for price in usd if price > 0), None)  # what is free up to an amount stands first
        if scale is None or paid is None:
            return None
        usage = found.get("category", {}).get("usageType", "")
        return cls(found["description"], usage, frozenset(found.get("serviceRegions", ())), paid * scale)


def refresh(settings: Settings, today: date, say: Callable[[str], None], file: Path = prices.FILE) -> None:
    """Write the catalogue's prices of a stack's nodes into the table of prices; other prices stay.

    Raises:
        ProgramError: no credentials, the API is off, does not answer or has no prices, or the table cannot be written.
            Nothing is written.
    """
    base = live_state.google_api("cloudbilling", "https://cloudbilling.googleapis.com/")
    url = f"{base}v1/services/{COMPUTE_ENGINE}/skus"
    say("reading Google's catalogue of Compute Engine prices, some 30,000 rows ...")
    try:
        skus = [sku for row in live_state.google_list(settings.project, url, "skus") if (sku := Sku.read(row))]
    except (live_state.RequestRefused, live_state.NotAnswering) as failure:
        raise ProgramError(
            f"{failure}\nNothing was written. The catalogue needs its API enabled: "
            f"`gcloud services enable cloudbilling.googleapis.com --project {settings.project}`."
        ) from failure
    if not skus:
        raise ProgramError(f"{url} has no prices; nothing was written.")
    known = prices.parsed(file.read_text(encoding="utf-8"))
    for what, usd in _of_stack(settings, skus).items():
        place = (what, settings.region)
        before = known.get(place)
        if isinstance(usd, str):
            say(f"  {what}: {usd}; {f'stays {before.usd:.4f} of {before.read}' if before else 'no price is known'}")
            continue
        say(f"  {what}: {usd:.4f} USD an hour, {f'was {before.usd:.4f} of {before.read}' if before else 'new'}")
        remark = prices.RESERVED if what.endswith(", reservation") else ""
        known[place] = Price(
            what=what, region=settings.region, usd=round(usd, 8), read=today, source=SOURCE, remark=remark
        )
    try:
        stack_file.replace(file, prices.written(known.values()))
    except OSError as error:
        remedy = "Nothing was changed; make it writable or free some space, then run this again."
        raise ProgramError(f"{prices.TABLE} cannot be written: {error}. {remedy}") from None
    say(f"{file.name} has them; `git diff` shows what changed")


def _of_stack(settings: Settings, skus: list[Sku]) -> dict[str, float | str]:
    """The items that a stack pays for by the hour, each with its price, or why there is none."""
    here = [sku for sku in skus if settings.region in sku.regions]
    found: dict[str, float | str] = {}
    if gpu := settings.gpu:
        for entry in gpu.capacity:
            found[prices.gpu_name(gpu.machine, entry.mode)] = _gpu_node(gpu.machine, entry.mode, here)
    for pool in (settings.cluster.system_pool, settings.cluster.cpu_pool):
        machine = general_purpose(pool.machine_type)
        family = _FAMILIES[machine.name.partition("-")[0]]
        for name, part in zip(prices.unit_names(machine), ("Core", "Ram"), strict=True):
            found[name] = _one(here, f"{family} Instance {part} running in ", "OnDemand")
    return found


def _gpu_node(machine: Machine, mode: Mode, skus: list[Sku]) -> float | str:
    called = _SPELLINGS[mode]
    host = "A3 ?Ultra" if machine.name.startswith("a3-ultragpu-") else machine.name.partition("-")[0].upper()
    part = f"{called.host}{host}(?: Instance)? {{}}(?: running in |$)"
    parts = (
        (machine.gpus, f"{_GPUS[machine.accelerator]} {called.gpu}running in ", called.usage),
        (machine.vcpus, part.format("Core"), called.usage),
        (machine.memory_gb, part.format("Ram"), called.usage),
        # Google counts that of Spot nodes as on demand in some places.
        (machine.local_ssds * LOCAL_SSD_GB, f"{called.local_ssd}(?: (?:running )?in .*)?$", ""),
    )
    total = 0.0
    for count, pattern, kind in parts:
        found = _one(skus, pattern, kind)
        if isinstance(found, str):
            return found
        total += count * found
    return total


def _one(skus: list[Sku], pattern: str, usage: str) -> float | str:
    """The price of the item whose name begins with a pattern, or why it is not known."""
    meant = re.compile(pattern, re.IGNORECASE)
    found = {sku.hourly_usd for sku in skus if meant.match(sku.description) and usage in ("", sku.usage)}
    if len(found) == 1:
        return found.pop()
    return f"the catalogue has {len(found) or 'no'} price{'s' * (len(found) > 1)} for {pattern!r}"
