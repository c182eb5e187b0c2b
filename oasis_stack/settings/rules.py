"""Rules that concern several settings at once, or more than the form of one.

A rule is left out where a setting it reads is already refused, so that one mistake is reported once.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from oasis_stack.facts import capacity_rules, names
from oasis_stack.facts.problem import Problem, SettingsError
from oasis_stack.settings import ray_rules as ray_setting_rules

if TYPE_CHECKING:
    from oasis_stack.settings.settings import Settings

WIDEST_AUTHORIZED_PREFIX = 8
"""A network wider than this is the internet by another name."""

DOCKER_BRIDGE = ipaddress.IPv4Network("172.17.0.0/16")
"""First of Docker's built-in address pools, and so its default bridge (moby/moby, daemon/libnetwork/ipamutils): a
machine with Docker cannot reach what has these addresses elsewhere."""

MAX_EXCLUSION = timedelta(days=180)
"""Longest maintenance exclusion with an end, by our own choice: an upgrade is due twice a year. GKE takes one of this
scope up to the end of the minor version's support (GoogleCloudPlatform/cluster-toolkit pull request 4986)."""

LEAST_VERSION = (1, 33)
"""First Kubernetes whose policies may compare maps by two-variable comprehensions, as `admission_policy` does
(Kubernetes documentation, "Common Expression Language in Kubernetes"); newer than the first GKE with flex-start nodes,
1.32.2-gke.1652000 (Google Kubernetes Engine documentation, "About flex-start provisioning mode")."""


def problems(settings: Settings, wandb_api_key: object, refused: set[str]) -> Iterator[Problem]:
    """Everything wrong with settings whose forms were read, but for the keys in `refused`."""
    for keys, rule in _RULES:
        if not any(_concerns(key, bad) for key in keys for bad in refused):
            for problem in rule(settings):
                item = problem.key.rpartition("]")
                if not any(_concerns(item[0] + item[1] or problem.key, bad) for bad in refused):
                    yield problem
    yield from _wandb_api_key(settings, wandb_api_key)


def _concerns(key: str, refused: str) -> bool:
    return (
        refused == key or refused.startswith((f"{key}.", f"{key}[")) or key.startswith((f"{refused}.", f"{refused}["))
    )


def _zone(settings: Settings) -> Iterator[Problem]:
    if settings.zone.rpartition("-")[0] != settings.region:
        yield Problem(
            key="zone",
            value=settings.zone,
            allowed=f"a zone of oasis:region, which is {settings.region}",
            remedy=f"set oasis:region to {settings.zone.rpartition('-')[0]}, or choose a zone of {settings.region}",
        )


def _capacity(settings: Settings) -> Iterable[Problem]:
    if settings.gpu is None:
        return ()
    return capacity_rules.problems(settings.gpu.machine, settings.zone, settings.gpu.capacity)


def _addresses(settings: Settings) -> Iterable[Problem]:
    try:
        settings.address_plan()
    except SettingsError as error:
        return error.problems
    return ()


def _docker_bridge(settings: Settings) -> Iterator[Problem]:
    for key in ("primary_block", "pods_block", "device_block"):
        text = getattr(settings.network, key)
        try:
            taken = ipaddress.IPv4Network(text).overlaps(DOCKER_BRIDGE)
        except ValueError:
            continue  # refused with the address plan
        if taken:
            yield Problem(
                key=f"network.{key}",
                value=text,
                allowed=f"a network apart from {DOCKER_BRIDGE}, which is Docker's own bridge on a machine that has it",
                remedy="move the block, for example into 10.0.0.0/8",
            )


def _least_version(settings: Settings) -> Iterator[Problem]:
    version = settings.cluster.minimum_version
    parts = tuple(map(int, re.findall(r"\d+", version)))
    # GKE reads a shorter version as the newest that begins with it.
    if parts < LEAST_VERSION[: len(parts)]:
        yield Problem(
            key="cluster.minimum_version",
            value=version,
            allowed="1.33 or newer, which the admission policies of the Ray namespace need, and flex-start too",
            remedy="raise it",
        )


def _encryption_key(settings: Settings) -> Iterator[Problem]:
    key = settings.cluster.secrets_encryption_key
    if key is not None and key.split("/")[3] != settings.region:
        yield Problem(
            key="cluster.secrets_encryption_key",
            value=key,
            allowed=f"a key in the cluster's own region, {settings.region}",
            remedy="name a key whose locations/ part is that region; Cloud KMS cannot move one, so make it there",
        )


def _endpoint(settings: Settings) -> Iterator[Problem]:
    cluster = settings.cluster
    key = "cluster.authorized_networks"
    if cluster.endpoint == "ip" and not cluster.authorized_networks:
        yield Problem(
            key=key,
            value=None,
            allowed="with endpoint ip, at least one network",
            remedy="add the network that you and CI connect from, or set oasis:cluster.endpoint to dns",
        )
    if cluster.endpoint == "dns" and cluster.authorized_networks:
        yield Problem(
            key=key,
            value=[str(network.cidr) for network in cluster.authorized_networks],
            allowed="none with endpoint dns, where IAM alone decides",
            remedy="remove the list, or set oasis:cluster.endpoint to ip",
        )
    for index, network in enumerate(cluster.authorized_networks):
        try:
            width = ipaddress.ip_network(network.cidr)
        except ValueError as error:
            reason = f"correct it: {error}"
        else:
            if width.prefixlen >= WIDEST_AUTHORIZED_PREFIX:
                continue
            reason = "name your own network; with endpoint dns no address needs to be listed"
        yield Problem(
            key=f"{key}[{index}].cidr",
            value=network.cidr,
            allowed=f"a network such as 203.0.113.0/24, never wider than /{WIDEST_AUTHORIZED_PREFIX}",
            remedy=reason,
        )


def _maintenance(settings: Settings) -> Iterator[Problem]:
    exclusion = settings.cluster.maintenance_exclusion
    if exclusion is None:
        return
    moments: list[datetime] = []
    given = (("start", exclusion.start), ("end", exclusion.end))
    for key, text in ((key, text) for key, text in given if text is not None):
        try:
            moments.append(datetime.fromisoformat(text))
        except ValueError as error:
            yield Problem(
                key=f"cluster.maintenance_exclusion.{key}",
                value=text,
                allowed="a UTC time that exists",
                remedy=f"correct it: {error}",
            )
    if len(moments) == 2 and not timedelta() < moments[1] - moments[0] <= MAX_EXCLUSION:
        yield Problem(
            key="cluster.maintenance_exclusion.end",
            value=exclusion.end,
            allowed=f"a time after its start, {exclusion.start}, and at most {MAX_EXCLUSION.days} days after it",
            remedy="move one of the two, or leave the end out: it then lasts until the version's support ends",
        )


def _pools(settings: Settings) -> Iterator[Problem]:
    for name, pool in (("system_pool", settings.cluster.system_pool), ("cpu_pool", settings.cluster.cpu_pool)):
        if pool.min_nodes > pool.max_nodes:
            yield Problem(
                key=f"cluster.{name}.min_nodes",
                value=pool.min_nodes,
                allowed=f"at most max_nodes, which is {pool.max_nodes}",
                remedy="lower it or raise max_nodes",
            )


def _soft_delete(settings: Settings) -> Iterator[Problem]:
    for key, bucket in (("data", settings.data), ("runs", settings.runs)):
        if 0 < bucket.soft_delete_days < 7:
            yield Problem(
                key=f"{key}.soft_delete_days",
                value=bucket.soft_delete_days,
                allowed="0, or 7 to 90",
                remedy="set 0 to keep nothing, or at least 7: Cloud Storage has nothing between",
            )


def _labels(settings: Settings) -> Iterator[Problem]:
    for key, value in settings.labels.items():
        if not names.LABEL_KEY_PATTERN.fullmatch(key) or not names.LABEL_VALUE_PATTERN.fullmatch(value):
            yield Problem(
                key=f"labels.{key}",
                value=value,
                allowed="key and value of at most 63 of a-z, 0-9, _ and -, the key with a letter first and not goog",
                remedy="rename it, or put it in quotes if it is a date",
            )


def _wandb_api_key(settings: Settings, value: object) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(value, str | int | float):
        yield Problem(
            key="wandb_api_key",
            value="(plain text, not shown)",
            allowed="an encrypted value",
            remedy="revoke that key, then use `make secret`, or `pulumi config set --secret oasis:wandb_api_key`",
        )
    if settings.wandb is None:
        yield Problem(
            key="wandb",
            value=None,
            allowed="a section, `oasis:wandb: {}`, while oasis:wandb_api_key has a value",
            remedy="add the section, or remove the key",
        )


_RULES: tuple[tuple[tuple[str, ...], Callable[[Settings], Iterable[Problem]]], ...] = (
    (("region", "zone"), _zone),
    (("gpu.machine_type",), _capacity),
    (("network", "cluster.system_pool", "cluster.cpu_pool", "gpu.machine_type", "gpu.capacity"), _addresses),
    (("network",), _docker_bridge),
    (("cluster.minimum_version",), _least_version),
    (("cluster.secrets_encryption_key", "region"), _encryption_key),
    (("cluster.endpoint", "cluster.authorized_networks"), _endpoint),
    (("cluster.maintenance_exclusion",), _maintenance),
    (("cluster.system_pool", "cluster.cpu_pool"), _pools),
    (("cluster.system_pool", "ray.head"), ray_setting_rules.head),
    (("ray.cpu_workers_max", "ray.cpu_worker", "cluster.cpu_pool"), ray_setting_rules.cpu_workers),
    (("ray.dashboard_access", "ray.dashboard_client_ranges"), ray_setting_rules.dashboard),
    (("ray.version", "ray.image"), ray_setting_rules.image),
    (("data", "runs"), _soft_delete),
    (("labels",), _labels),
)
"""Each rule with the settings it reads."""
