"""Compute Engine's advice API: its questions, and the meaning of its answers. Pure.

Fields: the discovery document of compute v1, resource `advice`. Their meaning: Google's pages "View the availability of
Spot VMs" and "View the preemption rate and pricing for Spot VMs", which speak of Spot VMs alone; "About future
reservation requests in calendar mode".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from oasis_stack.facts.capacity_rules import Mode

MODELS: Mapping[Mode, str] = {
    "flex-start": "FLEX_START",
    "queued": "FLEX_START",
    "spot": "SPOT",
    "on-demand": "STANDARD",
}
"""How the API calls each way of buying. Not a reservation: whether its nodes come is no matter of chance."""

LONGEST_UPTIME = timedelta(hours=1)
"""Google estimates 1, 10 or 60 minutes, each as what most nodes reach at least ("View the availability of Spot
VMs")."""

MOST_RESERVED = 80
"""Most nodes of one request in calendar mode, which may begin within so many days ("About future reservation requests
in calendar mode"):"""
WINDOW_DAYS = 60

_KEY = "nodes"
"""Name that a request gives to its only part."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One call of the advice API."""

    name: str
    """What it asks, by which its answer is kept: it is the same tomorrow."""
    region: str
    method: str
    body: Mapping[str, Any]

    def path(self, project: str) -> str:
        """Path of the call, behind the API's version."""
        return f"projects/{project}/regions/{self.region}/advice/{self.method}"


@dataclass(frozen=True, kw_only=True)
class Chance:
    """The likelihood that a number of nodes comes."""

    obtainability: float
    """0 to 1."""
    uptime: timedelta | None
    """How long most of them last at least before Google takes them back; None where it says nothing of it."""


@dataclass(frozen=True, kw_only=True)
class Preemptions:
    """The share of the Spot nodes that ended on a day which Google took back, of all its customers."""

    day: datetime
    """Begin of the last day."""
    rate: float
    lowest: float
    highest: float
    days: int


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Spot's list prices of a node and hour in a region."""

    usd: float
    since: datetime
    first_usd: float
    """At the beginning of what Google tells of, a year at most."""
    first: datetime


@dataclass(frozen=True, kw_only=True)
class Window:
    """When nodes can be reserved."""

    zone: str
    begin: datetime | None
    """None where they cannot."""
    reason: str
    """Google's word for why not."""


def capacity(machine_type: str, zone: str, model: str, nodes: int) -> Question:
    """How likely so many nodes of a zone are to come together."""
    return Question(
        name=f"capacity of {zone} for {nodes} {machine_type} by {model}",
        region=region_of(zone),
        method="capacity",
        body={
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{zone}"}]},
            "instanceFlexibilityPolicy": {"instanceSelections": {_KEY: {"machineTypes": [machine_type]}}},
            "instanceProperties": {"scheduling": {"provisioningModel": model}},
            "size": nodes,
        },
    )


def preemptions(machine_type: str, zone: str) -> Question:
    """How many Spot nodes of a zone were taken back in the last 30 days."""
    return _history(machine_type, region_of(zone), "PREEMPTION", {"locationPolicy": {"location": f"zones/{zone}"}})


def prices(machine_type: str, region: str) -> Question:
    """What a Spot node of a region cost in the last year: prices of zones are not told of."""
    return _history(machine_type, region, "PRICE", {})


def windows(machine_type: str, region: str, nodes: int, days: int, now: datetime) -> Question:
    """When so many nodes of a region can be reserved for some days."""
    length = f"{days * 86400}s"
    wanted = {"specificSkuResources": {"instanceCount": str(nodes), "machineType": machine_type}}
    times = {
        "startTimeNotEarlierThan": _text(now),
        "startTimeNotLaterThan": _text(now + timedelta(days=WINDOW_DAYS)),
        "minDuration": length,
        "maxDuration": length,
    }
    return Question(
        name=f"windows of {region} for {nodes} {machine_type} and {days} days",
        region=region,
        method="calendarMode",
        body={"futureResourcesSpecs": {_KEY: {"targetResources": wanted, "timeRangeSpec": times}}},
    )


def region_of(zone: str) -> str:
    """The region that a zone is in."""
    return zone.rpartition("-")[0]


def read(reader: Callable[[Any], _Read], answer: Any) -> _Read | None:
    """What a reader makes of an answer; None where it says nothing, or in a form that is not known."""
    try:
        return reader(answer)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def chance(answer: Any) -> Chance:
    """What an answer to `capacity` says, for `read`."""
    scores = answer["recommendations"][0]["scores"]
    uptime = scores.get("estimatedUptime")
    return Chance(
        # JSON of protobuf may leave out a 0 ("ProtoJSON Format", presence and default values); not so beside nothing.
        obtainability=float(scores.get("obtainability", 0.0) if scores else scores["obtainability"]),
        uptime=timedelta(seconds=float(uptime.removesuffix("s"))) if uptime else None,
    )


def preemption_rates(answer: Any) -> Preemptions:
    """What an answer to `preemptions` says, for `read`."""
    found = sorted(
        (datetime.fromisoformat(one["interval"]["startTime"]), float(one.get("preemptionRate", 0.0)))
        for one in answer["preemptionHistory"]
    )
    rates = [rate for _, rate in found]
    return Preemptions(day=found[-1][0], rate=rates[-1], lowest=min(rates), highest=max(rates), days=len(rates))


def price_history(answer: Any) -> Prices:
    """What an answer to `prices` says, for `read`."""
    found = sorted(
        (datetime.fromisoformat(one["interval"]["startTime"]), _usd(one["listPrice"])) for one in answer["priceHistory"]
    )
    (first, first_usd), (since, usd) = found[0], found[-1]
    return Prices(usd=usd, since=since, first=first, first_usd=first_usd)


def _usd(money: Any) -> float:
    if money["currencyCode"] != "USD":
        raise ValueError(money["currencyCode"])
    return int(money.get("units", 0)) + int(money.get("nanos", 0)) / 1e9


def window(answer: Any) -> Window:
    """What an answer to `windows` says, for `read`."""
    found = answer["recommendations"][0]["recommendationsPerSpec"][_KEY]
    place, others = found.get("location", ""), found.get("otherLocations", {})
    if place:
        return Window(zone=place.rpartition("/")[2], begin=datetime.fromisoformat(found["startTime"]), reason="")
    reasons = sorted({str(other["status"]) for other in others.values()})
    return Window(zone="", begin=None, reason=", ".join(reasons) or "no reason given")


def _history(machine_type: str, region: str, kind: str, place: Mapping[str, Any]) -> Question:
    where = place["locationPolicy"]["location"].rpartition("/")[2] if place else region
    machine = {"machineType": machine_type, "scheduling": {"provisioningModel": MODELS["spot"]}}
    return Question(
        name=f"{kind} of {where} for {machine_type}",
        region=region,
        method="capacityHistory",
        body={"instanceProperties": machine, "types": [kind], **place},
    )


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
