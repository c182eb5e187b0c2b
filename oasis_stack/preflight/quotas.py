"""Quotas of Compute Engine, from both APIs that know them, beside what a stack asks for at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oasis_stack.preflight.finding import Finding, bad, good, unanswered, unknown
from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings.quota import Quota, of_gpus
from oasis_stack.settings.schema import Settings

UNLIMITED = -1.0
"""Google's word for no limit (Cloud Quotas API, `QuotaDetails.value`)."""


def check(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether each quota is as large as the ladder."""
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
        yield unanswered(unseen)
    for quota in wanted:
        yield from _judged(quota, compute[quota.region].get(quota.metric), listed.get(quota.quota))


def _judged(quota: Quota, compute: Mapping[str, Any] | None, info: Mapping[str, Any] | None) -> Iterator[Finding]:
    said = {
        "Compute Engine": None if compute is None else float(compute["limit"]),
        "Cloud Quotas": None if info is None else _value(quota, info),
    }
    limits = {who: limit for who, limit in said.items() if limit is not None}
    where = f" in {quota.region}" if quota.region else ""
    page = "https://console.cloud.google.com/iam-admin/quotas"
    if not limits:
        yield unknown(
            f"nobody says what {quota.called} is{where}; the ladder takes {quota.most} ({quota.what})",
            f"Look at {page}.",
        )
        return
    if len(set(limits.values())) > 1:
        told = ", ".join(f"{who} says {limit:g}" for who, limit in limits.items())
        yield unknown(f"{quota.called}{where}: {told}", f"The smaller is judged here; look at {page}.")
    limit = min(limits.values(), key=lambda limit: float("inf") if limit == UNLIMITED else limit)
    used = float((compute or {}).get("usage", 0))
    use = f", of which {used:g} are in use" if used else ""
    if limit != UNLIMITED and limit < quota.most:
        yield bad(
            f"{quota.called} is {limit:g}{where}{use}, and the ladder takes {quota.most} ({quota.what})",
            f"Ask for more at {page} (small raises come in minutes, large ones in days), or lower max_nodes. Without "
            "quota a request for nodes waits, and nobody says why.",
        )
    else:
        shown = "unlimited" if limit == UNLIMITED else f"{limit:g}"
        yield good(f"{quota.called} is {shown}{where}{use}; the ladder takes {quota.most}")


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
