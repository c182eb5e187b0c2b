"""Compute Engine quotas, from both APIs that know them, compared with the most that a stack asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oasis_stack.preflight.finding import Finding, bad, good, told, unanswered, unknown
from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings.quota import Quota, by_family, of_gpus, of_nodes
from oasis_stack.settings.schema import Settings

UNLIMITED = -1.0
"""Google's word for no limit (Cloud Quotas API, `QuotaDetails.value`)."""


_PAGE = "https://console.cloud.google.com/iam-admin/quotas"

_OBJECTS = {
    "gcp:compute/firewall:Firewall": ("FIREWALLS", "global/firewalls"),
    "gcp:compute/network:Network": ("NETWORKS", "global/networks"),
    "gcp:compute/router:Router": ("ROUTERS", "regions/{region}/routers"),
    "gcp:compute/subnetwork:Subnetwork": ("SUBNETWORKS", "regions/{region}/subnetworks"),
}
"""Quota of the whole project that each object counts towards, and the list that it is in (discovery document of
Compute Engine, `Quota.metric`)."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A quota as Google reports it."""

    quota: Quota
    said: Mapping[str, float]
    """The limit, by the API that says so; infinite where it has none."""
    used: float | None
    """How much of it is in use; None where Compute Engine does not list it."""


def left(settings: Settings, google: Google) -> list[Held]:
    """Each quota of the ladder that Google reports. Raises as `Google.get`."""
    wanted = of_gpus(settings)
    if not wanted:
        return []
    try:
        infos = _cloud_quotas(google)
    except UnseenError:
        infos = []
    return [held for held in _held(wanted, _compute(google, settings.region), infos) if held.said]


def _held(
    wanted: Sequence[Quota], compute: Mapping[str, Mapping[str, Any]], infos: Iterable[Mapping[str, Any]]
) -> Iterator[Held]:
    listed = {info["quotaId"]: info for info in infos}
    for quota in wanted:
        own, info = compute[quota.region].get(quota.metric), listed.get(quota.quota)
        limits = {
            "Compute Engine": None if own is None else float(own["limit"]),
            "Cloud Quotas": None if info is None else _value(quota, info),
        }
        said = {who: math.inf if limit == UNLIMITED else limit for who, limit in limits.items() if limit is not None}
        yield Held(quota=quota, said=said, used=None if own is None else float(own.get("usage", 0)))


def check(settings: Settings, google: Google, made: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Whether each quota is as large as what the stack takes at most.

    Args:
        settings: of the stack.
        google: asked.
        made: names of what the stack makes, without the provider's suffix, by Pulumi's type.
    """
    try:
        infos = _cloud_quotas(google)
    except UnseenError as unseen:
        infos = []
        yield unanswered(unseen)
    try:
        compute = _compute(google, settings.region)
    except UnseenError as unseen:
        compute = {"": {}, settings.region: {}}
        yield unanswered(unseen)
    for found in _held(of_nodes(settings), compute, infos):
        yield from _judged(found)
    for metric, most in by_family(settings).items():
        rows = [row for info in infos if info.get("metric") == metric for row in info.get("dimensionsInfos", [])]
        if said := [_row(row) for row in rows if _is_here(settings.region, row)]:
            name = metric.rpartition("/")[2]
            yield told(f"{name} is {', '.join(said)}; GPU nodes take {most}, of a family that no public source names")
    for token, (metric, path) in _OBJECTS.items():
        names, quota = made.get(token, ()), compute[""].get(metric)
        if names and quota:
            yield _objects(google, quota, names, path.format(region=settings.region))


def _objects(google: Google, quota: Mapping[str, Any], names: Sequence[str], path: str) -> Finding:
    metric, limit, used = quota["metric"], float(quota["limit"]), float(quota.get("usage", 0))
    what = f"{metric} is {limit:g}, of which {used:g} are in use; the stack makes {len(names)}"
    if limit >= used + len(names):
        return good(what)
    ask = f"Ask for more at {_PAGE}, or delete what is not needed."
    listed = [str(one["name"]) for one in google.list("compute", f"projects/{google.project}/{path}", "items")]
    own = [name for name in names if any(re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{7}}", one) for one in listed)]
    if own and limit >= used + len(names) - len(own):
        return unknown(f"{what}, and {len(own)} with these names exist", f"If they are another stack's: {ask}")
    return bad(what, ask)


def _judged(found: Held) -> Iterator[Finding]:
    quota = found.quota
    where = f" in {quota.region}" if quota.region else ""
    if not found.said:
        yield unknown(
            f"no API says what {quota.called} is{where}; the stack takes {quota.most} ({quota.what})",
            f"Look at {_PAGE}.",
        )
        return
    if len(set(found.said.values())) > 1:
        told = ", ".join(f"{who} says {_shown(limit)}" for who, limit in found.said.items())
        yield unknown(f"{quota.called}{where}: {told}", f"The smaller one counts here; look at {_PAGE}.")
    limit = min(found.said.values())
    use = f", of which {found.used:g} are in use" if found.used else ""
    if limit < quota.most:
        yield bad(
            f"{quota.called} is {limit:g}{where}{use}, and the stack takes {quota.most} ({quota.what})",
            f"Ask for more at {_PAGE} (small raises come in minutes, large ones in days), or lower max_nodes. Without "
            "quota a request for nodes waits, and nothing says why.",
        )
    else:
        yield good(f"{quota.called} is {_shown(limit)}{where}{use}; the stack takes {quota.most}")


def _shown(limit: float) -> str:
    return "unlimited" if limit == math.inf else f"{limit:g}"


def _value(quota: Quota, info: Mapping[str, Any]) -> float | None:
    """The limit that fits; rows are ordered from the specific to the general, and the first one that fits counts."""
    mine = {**quota.dimensions, **({"region": quota.region} if quota.region else {})}
    for row in info.get("dimensionsInfos", []):
        if _is_here(quota.region, row) and all(
            mine.get(key) == value for key, value in row.get("dimensions", {}).items()
        ):
            # JSON of protobuf may leave out a 0 ("ProtoJSON Format", presence and default values).
            return float(row["details"].get("value", 0)) if "details" in row else None
    return None


def _is_here(region: str, row: Mapping[str, Any]) -> bool:
    applies = row.get("applicableLocations", [])
    return not region or not applies or region in applies


def _row(row: Mapping[str, Any]) -> str:
    limit = float(row.get("details", {}).get("value", 0))
    return (
        f"{_shown(math.inf if limit == UNLIMITED else limit)} for {row.get('dimensions', {}).get('vm_family', 'all')}"
    )


def _compute(google: Google, region: str) -> dict[str, dict[str, Any]]:
    """Quotas of a region and, under an empty name, of the whole project, each by its metric."""
    project = f"projects/{google.project}"
    answers = {"": google.get("compute", project), region: google.get("compute", f"{project}/regions/{region}")}
    return {
        place: {quota["metric"]: quota for quota in (answer or {}).get("quotas", [])}
        for place, answer in answers.items()
    }


def _cloud_quotas(google: Google) -> list[dict[str, Any]]:
    path = f"v1/projects/{google.project}/locations/global/services/compute.googleapis.com/quotaInfos"
    return list(google.list("cloudquotas", path, "quotaInfos"))
