"""Quotas of Compute Engine, from both APIs that know them, beside what a stack asks for at most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oasis_stack.preflight.finding import Finding, bad, good, unanswered, unknown
from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings.quota import Quota, of_gpus
from oasis_stack.settings.schema import Settings

UNLIMITED = -1.0
"""Google's word for no limit (Cloud Quotas API, `QuotaDetails.value`)."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A quota as Google tells of it."""

    quota: Quota
    said: Mapping[str, float]
    """The limit, by the API that says so; infinite where it has none."""
    used: float
    """How much of it is in use, as far as Compute Engine says."""


def held(settings: Settings, google: Google) -> Iterator[Held | UnseenError]:
    """Each quota of the ladder; before them why the Cloud Quotas API tells nothing, if it does not."""
    wanted = of_gpus(settings)
    if not wanted:
        return
    compute = {
        region: {quota["metric"]: quota for quota in _compute(google, region)} for region in {q.region for q in wanted}
    }
    try:
        listed = {info["quotaId"]: info for info in _cloud_quotas(google)}
    except UnseenError as unseen:
        listed = {}
        yield unseen
    for quota in wanted:
        own, info = compute[quota.region].get(quota.metric), listed.get(quota.quota)
        limits = {
            "Compute Engine": None if own is None else float(own["limit"]),
            "Cloud Quotas": None if info is None else _value(quota, info),
        }
        said = {who: math.inf if limit == UNLIMITED else limit for who, limit in limits.items() if limit is not None}
        yield Held(quota=quota, said=said, used=float((own or {}).get("usage", 0)))


def check(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether each quota is as large as the ladder."""
    for found in held(settings, google):
        if isinstance(found, UnseenError):
            yield unanswered(found)
        else:
            yield from _judged(found)


def _judged(found: Held) -> Iterator[Finding]:
    quota = found.quota
    where = f" in {quota.region}" if quota.region else ""
    page = "https://console.cloud.google.com/iam-admin/quotas"
    if not found.said:
        yield unknown(
            f"nobody says what {quota.called} is{where}; the ladder takes {quota.most} ({quota.what})",
            f"Look at {page}.",
        )
        return
    if len(set(found.said.values())) > 1:
        told = ", ".join(f"{who} says {_shown(limit)}" for who, limit in found.said.items())
        yield unknown(f"{quota.called}{where}: {told}", f"The smaller is judged here; look at {page}.")
    limit = min(found.said.values())
    use = f", of which {found.used:g} are in use" if found.used else ""
    if limit < quota.most:
        yield bad(
            f"{quota.called} is {limit:g}{where}{use}, and the ladder takes {quota.most} ({quota.what})",
            f"Ask for more at {page} (small raises come in minutes, large ones in days), or lower max_nodes. Without "
            "quota a request for nodes waits, and nobody says why.",
        )
    else:
        yield good(f"{quota.called} is {_shown(limit)}{where}{use}; the ladder takes {quota.most}")


def _shown(limit: float) -> str:
    return "unlimited" if limit == math.inf else f"{limit:g}"


def _value(quota: Quota, info: Mapping[str, Any]) -> float | None:
    """The limit that fits; rows are ordered from the specific to the general, and the first one that fits counts."""
    mine = {**quota.dimensions, **({"region": quota.region} if quota.region else {})}
    for row in info.get("dimensionsInfos", []):
        applies = row.get("applicableLocations", [])
        here = not quota.region or not applies or quota.region in applies
        if here and all(mine.get(key) == value for key, value in row.get("dimensions", {}).items()):
            # JSON of protobuf may leave out a 0 ("ProtoJSON Format", presence and default values).
            return float(row["details"].get("value", 0)) if "details" in row else None
    return None


def _compute(google: Google, region: str) -> list[dict[str, Any]]:
    path = f"projects/{google.project}" + (f"/regions/{region}" if region else "")
    return (google.get("compute", path) or {}).get("quotas", [])


def _cloud_quotas(google: Google) -> Iterator[dict[str, Any]]:
    path = f"v1/projects/{google.project}/locations/global/services/compute.googleapis.com/quotaInfos"
    return google.list("cloudquotas", path, "quotaInfos")
