"""`plan`: the meaning of a stack file, as text. Reads only the file: no engine, no cloud, no network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from ipaddress import IPv4Network
from typing import Any

from oasis_stack.facts import capacity_rules
from oasis_stack.facts.prices import Price
from oasis_stack.facts.problem import config_key
from oasis_stack.settings import cost, quota
from oasis_stack.settings.schema import GpuSettings, Settings


def report(settings: Settings, values: Mapping[str, object], today: date) -> str:
    """Settings with their sources, addresses, ladder and prices. `values` is the content of the stack file."""
    parts = ["Settings", *_table(effective(settings, values)), "", "Addresses", *_table(_addresses(settings)), ""]
    if settings.gpu is None:
        return "\n".join([*parts, "No GPUs: the stack has no gpu section.", "", *_prices(settings, today)])
    return "\n".join([*parts, *_ladder(settings.gpu), "", *_quotas(settings), "", *_prices(settings, today)])


def notes(settings: Settings, now: datetime) -> Iterator[str]:
    """Remarks on settings that are legal but probably not intended."""
    exclusion = settings.cluster.maintenance_exclusion
    if exclusion is not None and exclusion.end is not None and datetime.fromisoformat(exclusion.end) <= now:
        yield (
            f"Note: oasis:cluster.maintenance_exclusion ended at {exclusion.end}: upgrades may now drain a node under "
            "a training run. Give it new times, or remove it."
        )


def effective(settings: Settings, values: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Every setting: key in the stack file, value in force, `file` or `default`."""
    rows = list(_rows(settings, values, ""))
    secret = "(encrypted)" if values.get("wandb_api_key") is not None else "-"
    return [*rows, (config_key("wandb_api_key"), secret, "default" if secret == "-" else "file")]


def _rows(section: Any, given: object, key: str) -> Iterator[tuple[str, str, str]]:
    for field in dataclasses.fields(section):
        value, path = getattr(section, field.name), f"{key}.{field.name}" if key else field.name
        here = given.get(field.name) if isinstance(given, Mapping) else None
        if field.name == "wandb_api_key":
            continue
        if dataclasses.is_dataclass(value):
            yield from _rows(value, here, path)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            items = here if isinstance(here, list | tuple) else ()
            for index, item in enumerate(value):
                yield from _rows(item, items[index] if index < len(items) else None, f"{path}[{index}]")
        else:
            yield config_key(path), _text(value), "default" if here is None else "file"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "", ()) else str(value)


def _addresses(settings: Settings) -> list[tuple[str, str, str]]:
    meanings = {
        "nodes": "first interface of every node",
        "services": "Kubernetes Services",
        "proxy_only": "proxies of an Ingress of class gce-internal; used with network.proxy_only: true",
        "peering": "Cloud Build workers; used with build.peered: true",
        "control_plane": "GKE control plane",
        "pods": "pods, a /24 per node",
        "gvnic": "second gVNIC of the GPU nodes",
    }
    return [
        (f"{name} ({IPv4Network(text).num_addresses})", text, meanings.get(name, "RDMA NIC of the GPU nodes"))
        for name, text in settings.address_plan().ranges().items()
    ]


def _ladder(gpu: GpuSettings) -> Iterator[str]:
    yield f"Ladder of {gpu.machine_type} (compute class {gpu.compute_class}), tried from the top"
    for number, entry in enumerate(gpu.capacity, 1):
        rules = capacity_rules.pool_rules(gpu.machine, entry)
        most = f"{entry.max_nodes} node{'s' * (entry.max_nodes != 1)}"
        served = ", for queued jobs only" if rules.queued else ""
        yield f"  {number}. {entry.pool_name}: 0 to {most}, {entry.max_nodes * gpu.machine.gpus} GPUs{served}"
        flags = ((field.name, getattr(rules, field.name)) for field in dataclasses.fields(rules))
        yield "     " + ", ".join(f"{name}={_text(value)}" for name, value in flags)


def _quotas(settings: Settings) -> Iterator[str]:
    yield f"Quotas to hold in {settings.region} (with every pool at its max_nodes)"
    for one in quota.of_nodes(settings):
        yield f"  {one.called}: {one.most} ({one.what})"
    for metric, most in quota.by_family(settings).items():
        yield f"  {metric.rpartition('/')[2]}: {most}"


def _prices(settings: Settings, today: date) -> Iterator[str]:
    """Cost of the stack per hour and day: at rest, at most, and for each node with GPUs."""
    found, gpu = cost.hourly_cost(settings), settings.gpu
    rungs = [cost.rung(gpu.machine, entry, settings.region) for entry in gpu.capacity] if gpu else []
    reserved = ", reservations included" if any(rung.least for rung in rungs) else ""
    rows = [("at rest", _amounts(found.at_rest), f"what is always paid for{reserved}")]
    priced = [(rung.name, rung.price) for rung in rungs if rung.price]
    rows += [(f"{name}, a node", _amounts(price.usd), _remarks(price, settings.region)) for name, price in priced]
    rows.append(("at most", _amounts(found.at_most), "every pool at its max_nodes"))
    yield "Prices in USD, by the hour and the day: list prices, before tax and discounts"
    yield from _table(rows)
    if found.unknown:
        yield f"  Not in these sums, as no price was found: {', '.join(found.unknown)}"
    first, last = found.read
    elsewhere = {item.price.region for item in found.items if item.price} - {"", settings.region}
    if elsewhere:
        yield f"  Some are those of {', '.join(sorted(elsewhere))}, as no others were found: `make prices` reads them."
    yield (
        f"  Read from {first} to {last}, the oldest {(today - first).days} days ago "
        "(oasis_stack/facts/prices.csv has each; `make prices` reads those of nodes anew)."
    )
    yield "  Disks, storage, builds, logs, metrics and traffic come on top."


def _remarks(price: Price, region: str) -> str:
    place = f"of {price.region}" if price.region not in ("", region) else ""
    return ", ".join(filter(None, (price.remark, place)))


def _amounts(usd: float) -> str:
    return f"{usd:9,.2f} {24 * usd:11,.2f}"


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"  {first:<{widths[0]}}  {second:<{widths[1]}}  {third}" for first, second, third in rows]
