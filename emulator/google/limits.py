"""Quotas of projects and capacity of zones: the only limits are those in `limits.json` in the emulator's folder.

Google does not publish what it grants a project, or what its zones hold on a given day. The file holds an object of up
to three parts: `quotas`, by Compute Engine's names, with the region before a regional one (`{"NETWORKS": 5,
"us-central1/STATIC_ADDRESSES": 1}`); `capacity`, in nodes with GPUs, by zone and by the way in which nodes are bought
(`{"us-central1-b/flex-start": 0}`); `absent`, what zones do not offer
(`["us-central1-b/a3-ultragpu-8g", "us-central1-b-vpc-roce"]`) when they are asked for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall
from emulator.google.machines import GPU_MACHINES, machine_size

FILE = "limits.json"

MODES = ("flex-start", "spot", "reservation", "on-demand")
"""Ways in which a pool's nodes are bought."""

_COUNTED: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "FIREWALLS": ("compute/firewall", lambda _: True),
    "NETWORKS": ("compute/network", lambda _: True),
    "ROUTERS": ("compute/router", lambda _: True),
    "STATIC_ADDRESSES": ("compute/address", lambda body: body.get("addressType", "EXTERNAL") == "EXTERNAL"),
    "SUBNETWORKS": ("compute/subnetwork", lambda _: True),
}
"""Quotas of Compute Engine's resources: the kind, and which of its objects count (discovery document, Quota.metric)."""

_REGIONAL = re.compile(r"STATIC_ADDRESSES|(HDB|SSD)_TOTAL_GB|(N2D?_)?CPUS|(PREEMPTIBLE_)?NVIDIA_\w+_GPUS")
"""Quotas that a project has in each region."""

_GPU_WORDS: Mapping[str, str] = {"nvidia-h200-141gb": "NVIDIA_H200_GPUS", "nvidia-l4": "NVIDIA_L4_GPUS"}
"""The quota for each accelerator's GPUs; the quota for preemptible ones has the prefix PREEMPTIBLE_."""


_SHOWN: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "CPUS": lambda config: _vcpus(config, "e2"),
    "N2_CPUS": lambda config: _vcpus(config, "n2"),
    "N2D_CPUS": lambda config: _vcpus(config, "n2d"),
    "CPUS_ALL_REGIONS": lambda config: machine_size(config["machineType"])[0],
    "GPUS_ALL_REGIONS": lambda config: _gpus(config),
    "HDB_TOTAL_GB": lambda config: _disk(config, "hyperdisk-balanced"),
    "SSD_TOTAL_GB": lambda config: _disk(config, "pd-balanced") + _disk(config, "pd-ssd"),
}
"""What one node counts towards quotas that are shown but not enforced: what GKE's autoscaler is told of them is not
published."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The file's content."""

    quotas: Mapping[str, float]
    """Limit of each quota, by its name."""
    capacity: Mapping[str, int]
    """Nodes with GPUs that a zone holds in all, by `<zone>/<mode>`."""
    absent: frozenset[str]
    """Machine types, as `<zone>/<machine type>`, and network profiles that do not exist."""


def read(cloud: Cloud) -> Limits:
    """The limits in the file; none without a file. Raises RefusedCall for a file that is not as described above."""
    content = cloud.asked_in(FILE, dict)
    found = Limits(
        quotas=content.pop("quotas", {}),
        capacity=content.pop("capacity", {}),
        absent=frozenset(content.pop("absent", ())),
    )
    wrong = [
        *content,
        *(name for name in found.quotas if not _is_known(name)),
        *(name for name in found.capacity if name.partition("/")[2] not in MODES),
    ]
    if wrong:
        known = ", ".join([*_COUNTED, *_GPU_WORDS.values(), *_SHOWN])
        modes = ", ".join(MODES)
        message = f"{FILE}: {wrong[0]!r} is neither a quota ({known}) nor a zone's mode (ZONE/MODE; modes are {modes})"
        raise RefusedCall(400, message, "badRequest")
    return found


def require_quota(cloud: Cloud, kind: str, name: str, body: Mapping[str, Any]) -> None:
    """Refuse an object that would exceed its kind's quota. Raises RefusedCall.

    Words: trailofbits/algo issue 1520, cloudfoundry/bosh-google-cpi-release issue 238.
    """
    limits = read(cloud)
    project, region = name.split("/")[1], _region_of(name)
    for metric, (counted, counts) in _COUNTED.items():
        if counted != kind or not counts(body):
            continue
        limit = limits.quotas.get(f"{region}/{metric}" if _REGIONAL.fullmatch(metric) else metric)
        if limit is not None and usage(cloud, project, metric, region) >= limit:
            where = f"in region {region}" if _REGIONAL.fullmatch(metric) else "globally"
            message = f"Quota '{metric}' exceeded. Limit: {float(limit)} {where}."
            raise RefusedCall(403, message, "quotaExceeded")


def shown(cloud: Cloud, project: str, region: str = "") -> list[dict[str, Any]]:
    """The quotas of a project, or of one of its regions, as Compute Engine shows them."""
    found: list[dict[str, Any]] = []
    for name, limit in read(cloud).quotas.items():
        of, _, metric = name.rpartition("/")
        if of == region:
            found.append({"metric": metric, "limit": limit, "usage": usage(cloud, project, metric, region)})
    return found


def usage(cloud: Cloud, project: str, metric: str, region: str = "") -> float:
    """How much of a quota a project uses."""
    if metric not in _COUNTED:
        each = _SHOWN.get(metric, lambda config: _gpus(config) if metric_of(config) == metric else 0)
        nodes, place = _nodes(cloud, project), f"{region}-" if region else ""
        return float(sum(each(config) * count for config, zone, count in nodes if zone.startswith(place)))
    kind, counts = _COUNTED[metric]
    place = f"projects/{project}/regions/{region}/" if _REGIONAL.fullmatch(metric) else f"projects/{project}/"
    return float(sum(counts(one.body) for one in cloud.list(kind, place)))


def shortage(cloud: Cloud, project: str, config: Mapping[str, Any], zone: str, nodes: int = 1) -> str:
    """Why a project gets no further nodes of a configuration in a zone, in GKE's words; empty if it gets them.

    Words: huggingface/Google-Cloud-Containers issue 126 (quota); for capacity, what GKE's documentation gives for
    `scale.up.error.out.of.resources` ("View cluster autoscaler events").
    """
    machine = GPU_MACHINES.get(config["machineType"])
    if machine is None:
        return ""
    limits, mode = read(cloud), mode_of(config)
    region, metric = zone.rsplit("-", 1)[0], metric_of(config)
    limit = limits.quotas.get(f"{region}/{metric}")
    if limit is not None and usage(cloud, project, metric, region) + machine.gpus * nodes > limit:
        return "GCE quota exceeded"
    return "GCE out of resources" if left(cloud, project, zone, mode) < nodes else ""


def left(cloud: Cloud, project: str, zone: str, mode: str) -> float:
    """How many more nodes a zone has for a project, bought in one way; infinite if the file does not say."""
    held = read(cloud).capacity.get(f"{zone}/{mode}")
    if held is None:
        return math.inf
    return held - sum(
        count
        for config, where, count in _nodes(cloud, project)
        if _gpus(config) and (where, mode_of(config)) == (zone, mode)
    )


def surplus(cloud: Cloud, zone: str, count: int) -> int:
    """How many of a zone's `count` Spot nodes Google reclaims: those beyond the capacity."""
    return max(0, count - read(cloud).capacity.get(f"{zone}/spot", count))


def mode_of(config: Mapping[str, Any]) -> str:
    """The way in which nodes of a configuration are bought."""
    if config.get("flexStart"):
        return "flex-start"
    if config.get("spot"):
        return "spot"
    reserved = config.get("reservationAffinity", {}).get("consumeReservationType") == "SPECIFIC_RESERVATION"
    return "reservation" if reserved else "on-demand"


def metric_of(config: Mapping[str, Any]) -> str:
    """The quota that GPUs of a configuration count towards; empty without GPUs.

    Flex-start counts as preemptible (Google Cloud documentation, "About flex-start provisioning mode", requirements).
    """
    if config["machineType"] not in GPU_MACHINES:
        return ""
    word = _GPU_WORDS[GPU_MACHINES[config["machineType"]].accelerator]
    return f"PREEMPTIBLE_{word}" if mode_of(config) in ("flex-start", "spot") else word


def _nodes(cloud: Cloud, project: str) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    """(configuration, zone, number of nodes) of a project's pools."""
    for pool in cloud.list("container/nodePool", f"projects/{project}/"):
        for kind, name in cloud.users(pool.kind, pool.name, "part-of"):
            if kind == "compute/instanceGroupManager":
                group = cloud.get(kind, name).body
                yield pool.body["config"], group["zone"].rpartition("/")[2], group["targetSize"]


def _gpus(config: Mapping[str, Any]) -> int:
    machine = GPU_MACHINES.get(config["machineType"])
    return machine.gpus if machine else 0


def _vcpus(config: Mapping[str, Any], family: str) -> float:
    machine = config["machineType"]
    return machine_size(machine)[0] if machine.startswith(f"{family}-") else 0


def _disk(config: Mapping[str, Any], kind: str) -> int:
    return config["diskSizeGb"] if config["diskType"] == kind else 0


def _is_known(quota: str) -> bool:
    region, _, metric = quota.rpartition("/")
    gpus = {f"{prefix}{word}" for prefix in ("", "PREEMPTIBLE_") for word in _GPU_WORDS.values()}
    return metric in {*_COUNTED, *gpus, *_SHOWN} and bool(region) == bool(_REGIONAL.fullmatch(metric))


def _region_of(name: str) -> str:
    found = re.match(r"projects/[^/]+/regions/([^/]+)/", name)
    return found[1] if found else ""
