"""The resources that a destroyed stack leaves in its project, for good or for some days, and their monthly cost.

Sizes are requested from Google with a wait of a few seconds: no destroy hangs on them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from oasis_stack.facts import names, prices
from oasis_stack.facts.prices import Price, PriceTableError
from oasis_stack.live_state import last_part
from oasis_stack.preflight.google import Ask, Google, UnseenError, asked
from oasis_stack.settings.schema import Settings

PATIENCE_SECONDS = 10.0

TOTAL_BYTES = "storage.googleapis.com/storage/v2/total_bytes"
"""Size of each bucket by storage class and type of objects, deleted ones that are still kept among them: all of it is
paid for (Google Cloud documentation, "Google Cloud metrics", storage)."""

_MEASURED = timedelta(days=2)
"""It is measured once a day; how much later it is to be seen is a guess."""

_REPOSITORY = "gcp:artifactregistry/repository:Repository"
_SECTIONS = {
    "gcp:storage/bucket:Bucket::data": "data",
    "gcp:storage/bucket:Bucket::runs": "runs",
    f"{_REPOSITORY}::registry-docker": "registry",
    f"{_REPOSITORY}::registry-python": "registry",
    "gcp:secretmanager/secret:Secret::wandb": "wandb",
}
"""Section of each resource that can be kept, by the end of its URN, which is the same whatever a stack is called."""

_GB = 1e9  # a bill that counts in GiB is 7 % lower


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Bytes by name, as far as they are known, and why not all are."""

    known: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""


def lines(settings: Settings, now: datetime) -> Iterator[str]:
    """Resources that `destroy` leaves, by which setting, at what price, and how the next `up` takes them over."""
    google, name, region = Google(settings.project), settings.name, settings.region
    adopt = "set adopt: true in its section for the next up"
    buckets = {"data": settings.data, "runs": settings.runs}
    # While deleted objects can be restored, they are paid for; so they are in a deleted bucket (Cloud Storage
    # documentation, "Soft delete").
    staying = {purpose: bucket for purpose, bucket in buckets.items() if bucket.keep or bucket.soft_delete_days}
    questions: dict[str, Ask] = {}
    if staying:
        questions["buckets"] = lambda: _buckets(google, now)
    if settings.registry.keep:
        questions["repositories"] = lambda: _repositories(google, region)
    sizes = _sizes(questions)
    for purpose, bucket in staying.items():
        address = names.bucket(settings.project, name, purpose)
        cost = _of_size(prices.STORED, region, sizes["buckets"].known.get(address))
        if bucket.keep:
            yield f"bucket gs://{address} (oasis:{purpose}.keep){cost}; {adopt}"
        else:
            days = f"for {bucket.soft_delete_days} days (oasis:{purpose}.soft_delete_days)"
            yield f"what is in gs://{address} now, {days}{cost}; one more up with 0 days before the destroy spares that"
    if settings.registry.keep:
        local = [sizes["repositories"].known.get(names.repository(name, kind)) for kind in ("docker", "python")]
        size = None if None in local else sum(filter(None, local))
        cost = _of_size(prices.IMAGES, region, size)
        yield f"the local repositories {name}-* in Artifact Registry, {region} (oasis:registry.keep){cost}; {adopt}"
    if settings.wandb is not None and settings.wandb.keep:
        yield f"secret {names.secret(name, 'wandb')} (oasis:wandb.keep){_of_each(prices.SECRET, region)}; {adopt}"
    if settings.cluster.secrets_encryption_key or settings.registry.docker_hub:
        yield "the grants of Google's own agents on your key and secret, which other clusters may need, at no cost"
    yield (
        f"enabled Google APIs, at no cost; the state bucket{_of_size(prices.STORED, region, None)}; "
        f"and the encryption key{_of_each(prices.KEY, region)}"
    )
    used = [_price(what, region) for what in (prices.STORED, prices.IMAGES, prices.SECRET, prices.KEY)]
    if days := sorted(price.read for price in used if price):
        yield f"(list prices read from {days[0]} to {days[-1]}: {prices.TABLE})"
    for reason in dict.fromkeys(found.reason for found in sizes.values() if found.reason):
        unknown = " and ".join(what for what, found in sizes.items() if found.reason == reason)
        yield f"(sizes of {unknown} are not known: {reason})"


def unapplied(settings: Settings, state: Mapping[str, Any]) -> Iterator[str]:
    """What the stack file says about what stays and the last `up` did not: Pulumi destroys by its state.

    Args:
        settings: of the stack file.
        state: as `pulumi stack export` has it; empty where there is no stack.
    """
    told: dict[str, None] = {}
    for resource in (state.get("deployment") or {}).get("resources", []):
        section = _SECTIONS.get(resource["urn"].rpartition("$")[-1], "")
        kept = getattr(settings, section, None)
        keep = kept is not None and kept.keep
        if section and keep != resource.get("retainOnDelete", False):
            was, now = json.dumps(not keep), json.dumps(keep)
            told[f"oasis:{section}.keep is {now} in the stack file, and was {was} in the last `pulumi up`"] = None
        if section in {"data", "runs"}:
            was, now = resource["inputs"]["name"], names.bucket(settings.project, settings.name, section)
            if was != now:  # the names of all that is kept are made from these two settings
                told[
                    f"oasis:name and gcp:project in the stack file name {now}, and the last `pulumi up` made {was}"
                ] = None
    yield from told


def _sizes(questions: Mapping[str, Ask]) -> dict[str, _Sizes]:
    """The answers that came in time."""
    came, refused = asked(questions, PATIENCE_SECONDS)
    late = refused or f"Google has not answered within {PATIENCE_SECONDS:.0f} s"
    sizes: dict[str, _Sizes] = {}
    for what in questions:
        match came.get(what):
            case None:
                sizes[what] = _Sizes(reason=late)
            case UnseenError() as unseen:
                sizes[what] = _Sizes(reason=f"{unseen.problem}. {unseen.remedy}")
            case known:
                sizes[what] = _Sizes(known=known)
    return sizes


def _buckets(google: Google, now: datetime) -> Mapping[str, float]:
    """Newest measurement of each bucket of the project that has one."""
    interval = {
        "interval.startTime": (now - _MEASURED).isoformat(timespec="seconds"),
        "interval.endTime": now.isoformat(timespec="seconds"),
    }
    wanted = f'metric.type = "{TOTAL_BYTES}"'
    path = f"v3/projects/{google.project}/timeSeries"
    newest: dict[tuple[str, str], int] = {}
    for series in google.list("monitoring", path, "timeSeries", filter=wanted, **interval):
        which = series["resource"]["labels"]["bucket_name"], json.dumps(series["metric"], sort_keys=True)
        # The newest stands first, and a series that does not fit on a page goes on in the next one (Cloud Monitoring's
        # REST reference, TimeSeries.points and `pageSize`).
        newest.setdefault(which, int(series["points"][0]["value"]["doubleValue"]))
    found: Counter[str] = Counter()
    for (bucket, _), size in newest.items():
        found[bucket] += size
    return found


def _repositories(google: Google, region: str) -> Mapping[str, float]:
    path = f"v1/projects/{google.project}/locations/{region}/repositories"
    listed = google.list("artifactregistry", path, "repositories")
    return {last_part(one["name"]): float(one.get("sizeBytes", 0)) for one in listed}


def _of_size(what: str, region: str, size: float | None) -> str:
    """What so many bytes cost, or where they are not known, each GB."""
    told = "" if size is None else f", {size / _GB:,.1f} GB"
    price = _price(what, region)
    if price is None:
        return told
    if size is None:
        return f", {price.usd:g} USD a month for each GB{_elsewhere(price, region)}"
    return f"{told}: up to {price.usd * size / _GB:,.2f} USD a month{_elsewhere(price, region)}"


def _of_each(what: str, region: str) -> str:
    price = _price(what, region)
    return "" if price is None else f", {price.usd:.2f} USD a month for each active version"


def _elsewhere(price: Price, region: str) -> str:
    return "" if price.region in ("", region) else f" (in {price.region}; {region} is not in the table of prices)"


def _price(what: str, region: str) -> Price | None:
    try:
        return prices.lying(what, region)
    except PriceTableError:  # a price that nobody knows keeps nothing from being destroyed
        return None
