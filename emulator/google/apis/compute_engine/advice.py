"""Compute Engine's advice: whether nodes are available now, how Spot VMs fared, and when nodes can be reserved.

Fields and their meaning are the discovery document's. Only Google knows what it answers on a given day: here
obtainability and windows follow from the zone's capacity in `limits.json`, and histories are invented. Google documents
capacity and its history only for Spot VMs ("View the availability of Spot VMs", "View the preemption rate and pricing
for Spot VMs"); that it has no recommendation for other ways of buying is a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from emulator.google import limits
from emulator.google.cloud import timestamp
from emulator.google.collection import Body, Call, Collection, last
from emulator.google.errors import RefusedCall
from emulator.google.machines import GPU_MACHINES

HISTORY_DAYS, PRICE_DAYS = 30, 365
"""How far back preemptions and prices go ("View the preemption rate and pricing for Spot VMs")."""

LONG, SHORT = "3600s", "60s"
"""The longest and the shortest of the uptimes that Google estimates ("View the availability of Spot VMs")."""

REGIONS = frozenset(zone.rpartition("-")[0] for machine in GPU_MACHINES.values() for zone in machine.zones)

_INVENTED_USD = ("20", "24")
"""Prices per hour: until 100 days ago, and since."""


class Advice(Collection):
    """`projects/p/regions/r/advice`: answers to questions; nothing is stored."""

    kind = "compute/advice"

    def do_capacity(self, call: Call) -> Body:
        selections = call.body.get("instanceFlexibilityPolicy", {}).get("instanceSelections", {})
        names = [name for one in selections.values() for name in one.get("machineTypes", [])]
        wanted = [last(one.get("zone", "")) for one in call.body.get("distributionPolicy", {}).get("zones", [])]
        offers = [(zone, name) for name in names or [""] for zone in _zones(call, name, wanted)]
        model = call.body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel", "")
        if model != "SPOT":
            return {}
        size = max(1, int(call.body.get("size", 1)))
        free, zone, name = max(
            (limits.left(call.cloud, call.project, zone, "spot"), zone, name) for zone, name in offers
        )
        likely = round(max(0.0, min(1.0, free / size)), 2)
        scores = {"obtainability": likely, "estimatedUptime": LONG if likely == 1 else SHORT}
        shard = {"zone": zone, "machineType": name, "provisioningModel": model, "instanceCount": size}
        return {"recommendations": [{"scores": scores, "shards": [shard]}]}

    def do_capacity_history(self, call: Call) -> Body:
        asked, location = (
            call.body.get("instanceProperties", {}),
            call.body.get("locationPolicy", {}).get("location", ""),
        )
        name, zone = asked.get("machineType", ""), last(location) if "zones/" in location else ""
        _zones(call, name, [zone] if zone else [])
        model = asked.get("scheduling", {}).get("provisioningModel", "")
        if model != "SPOT":
            raise _invalid("instanceProperties.scheduling.provisioningModel", model, "It must be SPOT.")
        types, today = call.body.get("types", []), _midnight(datetime.fromtimestamp(call.cloud.now(), UTC))
        found: Body = {"machineType": name, "location": f"zones/{zone}" if zone else f"regions/{call.names['region']}"}
        if "PREEMPTION" in types:
            found["preemptionHistory"] = list(_preemptions(today))
        if "PRICE" in types and not zone:  # the page shows prices of regions alone
            found["priceHistory"] = list(_prices(today))
        return found

    def do_calendar_mode(self, call: Call) -> Body:
        specs = call.body.get("futureResourcesSpecs", {})
        if len(specs) != 1:
            raise _invalid("futureResourcesSpecs", str(len(specs)), "Exactly one specification is allowed.")
        ((key, spec),) = specs.items()
        wanted, times = spec.get("targetResources", {}).get("specificSkuResources", {}), spec.get("timeRangeSpec", {})
        start, latest = (_moment(times.get(f"startTimeNot{bound}Than", "")) for bound in ("Earlier", "Later"))
        least, most = (int(times.get(f"{bound}Duration", "0s").rstrip("s")) for bound in ("min", "max"))
        begin = _midnight(start) + timedelta(days=1)
        if begin > latest or least > most:
            raise _invalid("timeRangeSpec", str(times), "No interval matches it.")
        name, count = wanted.get("machineType", ""), int(wanted.get("instanceCount", "0"))
        found: Body = {"recommendationType": "FUTURE_RESERVATION"}
        others = dict[str, Any]()
        for zone in _zones(call, name, []):
            if limits.left(call.cloud, call.project, zone, "reservation") < count:
                details = "There is no capacity in the requested time window."
                others[f"zones/{zone}"] = {"status": "NO_CAPACITY", "details": details}
            else:
                end = begin + timedelta(seconds=most)
                found |= {"location": f"zones/{zone}", "startTime": _text(begin), "endTime": _text(end)}
        return {"recommendations": [{"recommendationsPerSpec": {key: {**found, "otherLocations": others}}}]}


def _zones(call: Call, name: str, wanted: Iterable[str]) -> list[str]:
    """The zones that offer a machine type, of the region or of those wanted. Raises RefusedCall if none does."""
    region = call.names["region"]
    if region not in REGIONS:
        path = f"projects/{call.project}/regions/{region}"
        raise RefusedCall(404, f"The resource '{path}' was not found", "notFound")
    offered = GPU_MACHINES[name].zones if name in GPU_MACHINES else frozenset[str]()
    absent = limits.read(call.cloud).absent
    there = {zone for zone in offered if zone.rpartition("-")[0] == region and f"{zone}/{name}" not in absent}
    found = sorted(there.intersection(wanted) if wanted else there)
    if not found:
        raise _invalid("machineType", name, f"It is not offered in {', '.join(wanted) or region}.")
    return found


def _preemptions(today: datetime) -> Iterator[Body]:
    for day in range(-HISTORY_DAYS, 0):
        begin = today + timedelta(days=day)
        yield {"interval": _interval(begin, begin + timedelta(days=1)), "preemptionRate": begin.day / 100}


def _prices(today: datetime) -> Iterator[Body]:
    moments = (-PRICE_DAYS, -100, 0)
    for usd, begin, end in zip(_INVENTED_USD, moments, moments[1:], strict=False):
        interval = _interval(today + timedelta(days=begin), today + timedelta(days=end))
        yield {"interval": interval, "listPrice": {"currencyCode": "USD", "units": usd, "nanos": 500_000_000}}


def _interval(begin: datetime, end: datetime) -> Body:
    return {"startTime": _text(begin), "endTime": _text(end)}


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _moment(text: str) -> datetime:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", text):
        raise _invalid("timeRangeSpec", text, "It is no moment.")
    return datetime.fromisoformat(text)


def _text(moment: datetime) -> str:
    return timestamp(moment.timestamp())


def _invalid(field: str, value: str, allowed: str) -> RefusedCall:
    return RefusedCall(400, f"Invalid value for field '{field}': '{value}'. {allowed}", "invalid")
