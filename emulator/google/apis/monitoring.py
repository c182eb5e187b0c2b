"""Cloud Monitoring: time series that GKE (`emulator.gke.metrics`) or a test has written, by metric and resource."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import reduce
from typing import Any

from emulator.google.collection import Body, Call, Collection
from emulator.google.errors import RefusedCall

_CONDITION = re.compile(r'((?:metric|resource)\.(?:type|labels\.\w+)) ?= ?"([^"]*)"')


class TimeSeries(Collection):
    """`projects/p/timeSeries`. The only filters understood are equality conditions joined by AND."""

    kind = "monitoring/timeSeries"
    items = "timeSeries"

    def do_list(self, call: Call) -> Body:
        wanted = _conditions(call.query.get("filter", ""))
        ended = datetime.fromisoformat(call.query["interval.endTime"])
        # Discovery document, TimeInterval: an interval excludes its start, which defaults to its end.
        began = datetime.fromisoformat(call.query.get("interval.startTime", call.query["interval.endTime"]))
        found: list[Body] = []
        for one in call.cloud.list(self.kind, f"projects/{call.project}/"):
            if all(_at(one.body, path) == value for path, value in wanted.items()):
                points = [point for point in one.body["points"] if began < _moment(point) <= ended]
                found += [{**one.body, "points": points}] if points else []
        return {self.items: found} if found else {}


def _conditions(text: str) -> dict[str, str]:
    parts = [_CONDITION.fullmatch(part.strip()) for part in text.split(" AND ")]
    found = {part[1]: part[2] for part in parts if part}
    if "metric.type" not in found or len(found) < len(parts):
        message = (
            "The supplied filter does not specify a valid combination of metric and monitored resource descriptors."
        )
        raise RefusedCall(400, f'{message} Here it is a metric.type and labels, NAME = "VALUE", and AND.', "badRequest")
    return found


def _at(body: Mapping[str, Any], path: str) -> Any:
    return reduce(lambda part, key: part.get(key, {}), path.split("."), body)


def _moment(point: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(point["interval"]["endTime"])


COLLECTIONS = {"monitoring.projects.timeSeries": TimeSeries()}
