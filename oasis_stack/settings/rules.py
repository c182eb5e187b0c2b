"""Rules about several settings at once, or about more than the form of one.

A rule is skipped if a setting that it reads has already been refused, so that each mistake is reported once.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from oasis_stack.facts import address_plan, capacity_rules, names, pod_size
from oasis_stack.facts.machine import general_purpose
from oasis_stack.facts.pod_size import BESIDE_HEADS, PodSize
from oasis_stack.facts.problem import Problem, SettingsError
from oasis_stack.settings.schema import Settings

WIDEST_AUTHORIZED_PREFIX = 8
"""A network wider than this is the internet by another name."""

DOCKER_BRIDGE = ipaddress.IPv4Network("172.17.0.0/16")
"""First of Docker's built-in address pools, and so its default bridge (moby/moby, daemon/libnetwork/ipamutils): a
machine with Docker cannot reach other hosts at these addresses."""

MAX_EXCLUSION = timedelta(days=180)
"""Longest maintenance exclusion with an end. This is our own choice: an upgrade is due twice a year. GKE accepts an
exclusion of this scope up to the end of the minor version's support (GoogleCloudPlatform/cluster-toolkit pull request
4986)."""

LEAST_VERSION = (1, 33)
"""First Kubernetes version whose policies can compare maps by two-variable comprehensions, as `admission_policy` does
(Kubernetes documentation, "Common Expression Language in Kubernetes"); newer than the first GKE with flex-start nodes,
1.32.2-gke.1652000 (Google Kubernetes Engine documentation, "About flex-start provisioning mode")."""


def problems(settings: Settings, wandb_api_key: object, refused: set[str]) -> Iterator[Problem]:
    """Everything wrong with settings that were read, except for the keys in `refused`."""
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


def _head(settings: Settings) -> Iterator[Problem]:
    machine_type = settings.cluster.system_pool.machine_type
    yield from _fits("ray.head", settings.ray.head.size, "system_pool", machine_type, BESIDE_HEADS)


def _queued_heads(settings: Settings) -> Iterator[Problem]:
    pool = settings.cluster.system_pool
    if settings.gpu and settings.gpu.queue and settings.queued_heads < 1:
        yield Problem(
            key="cluster.system_pool.max_nodes",
            value=pool.max_nodes,
            allowed=f"with a queued entry, enough for the heads of two Ray clusters on nodes of {pool.machine_type}",
            remedy="raise it: a queued job has a head of its own, which needs room beside the one that always runs",
        )


def _teams(settings: Settings) -> Iterator[Problem]:
    queue = settings.gpu.queue if settings.gpu else None
    if settings.teams and queue is None:
        yield Problem(
            key="teams",
            value=[team.name for team in settings.teams],
            allowed="none without an entry of mode queued in oasis:gpu.capacity, which teams share",
            remedy="add such an entry, or remove the teams",
        )
    if queue is None:
        return
    known = {settings.ray.namespace: "oasis:ray.namespace"}
    for index, team in enumerate(settings.teams):
        key = f"teams[{index}]"
        if team.name in known:
            yield Problem(
                key=f"{key}.name",
                value=team.name,
                allowed=f"a name of its own: {known[team.name]} has this one",
                remedy="rename one of them",
            )
        known.setdefault(team.name, f"oasis:{key}.name")
        if team.max_gpu_nodes is not None and not team.gpu_nodes <= team.max_gpu_nodes <= queue.max_nodes:
            yield Problem(
                key=f"{key}.max_gpu_nodes",
                value=team.max_gpu_nodes,
                allowed=f"from its gpu_nodes, {team.gpu_nodes}, to max_nodes of the queued entry, {queue.max_nodes}",
                remedy="correct it, or leave it out: it is then the whole queue",
            )
        for number, member in enumerate(team.members):
            if member.startswith("group:") and not settings.cluster.security_group:
                yield Problem(
                    key=f"{key}.members[{number}]",
                    value=member,
                    allowed="a group only with oasis:cluster.security_group: GKE knows no group outside that one",
                    remedy="name that group there and make this one its member, or name people",
                )
            first = team.members.index(member)
            if first < number:
                yield Problem(
                    key=f"{key}.members[{number}]",
                    value=member,
                    allowed=f"each member of a team once: oasis:{key}.members[{first}] is this one too",
                    remedy="remove one of them",
                )
    yield from _shared_nodes(settings, queue.max_nodes)


def _shared_nodes(settings: Settings, nodes: int) -> Iterator[Problem]:
    """Checks that the queue has the nodes that belong to teams, and a place for a head with each."""
    shares = ", ".join(f"{team.name} {team.gpu_nodes}" for team in settings.teams)
    if sum(team.gpu_nodes for team in settings.teams) > nodes:
        yield Problem(
            key="teams",
            value=shares,
            allowed=f"gpu_nodes of {nodes} together, the max_nodes of the queued entry in oasis:gpu.capacity",
            remedy="lower some, or raise max_nodes there",
        )
    if settings.teams and settings.queued_heads < nodes:
        pool = settings.cluster.system_pool
        yield Problem(
            key="cluster.system_pool.max_nodes",
            value=pool.max_nodes,
            allowed=f"with teams, enough for {nodes + 1} heads on nodes of {pool.machine_type}: each of the queue's "
            f"{nodes} nodes may be a job's, with a head of its own, beside the head that always runs",
            remedy="raise it, which costs nothing until heads need the nodes, or choose a larger machine_type",
        )


def _cpu_workers(settings: Settings) -> Iterator[Problem]:
    ray, pool = settings.ray, settings.cluster.cpu_pool
    if ray.cpu_workers_max > pool.max_nodes:
        yield Problem(
            key="ray.cpu_workers_max",
            value=ray.cpu_workers_max,
            allowed=f"at most oasis:cluster.cpu_pool.max_nodes, which is {pool.max_nodes}: a CPU worker takes a node",
            remedy="lower it or raise the pool's max_nodes",
        )
    if ray.cpu_workers_max:
        size = PodSize(cpus=ray.cpu_worker.cpus, memory_gib=ray.cpu_worker.memory_gb)
        yield from _fits("ray.cpu_worker", size, "cpu_pool", pool.machine_type, PodSize(cpus=0, memory_gib=0))


def _fits(key: str, size: PodSize, pool: str, machine_type: str, taken: PodSize) -> Iterator[Problem]:
    room = pod_size.whole_node_pod(general_purpose(machine_type))
    rows = (
        ("cpus", size.cpus, room.cpus - taken.cpus),
        ("memory_gb", size.memory_gib, room.memory_gib - taken.memory_gib),
    )
    for name, asked, free in rows:
        if asked > free:
            yield Problem(
                key=f"{key}.{name}",
                value=asked,
                allowed=f"at most {free}, what a {machine_type} has free beside GKE's own share",
                remedy=f"lower it, or choose a larger oasis:cluster.{pool}.machine_type: it would never start",
            )


def _dashboard(settings: Settings) -> Iterator[Problem]:
    ray, key = settings.ray, "ray.dashboard_client_ranges"
    if ray.balanced != bool(ray.dashboard_client_ranges):
        yield Problem(
            key=key,
            value=list(ray.dashboard_client_ranges) or None,
            allowed="at least one private network with an internal load balancer, and none without",
            remedy="list the networks that people connect from, or set oasis:ray.dashboard_access to port-forward",
        )
    for index, text in enumerate(ray.dashboard_client_ranges):
        try:
            private = any(ipaddress.IPv4Network(text).subnet_of(block) for block in address_plan.PRIVATE_BLOCKS)
        except ValueError:
            private = False
        if not private:
            yield Problem(
                key=f"{key}[{index}]",
                value=text,
                allowed=f"a network inside {', '.join(map(str, address_plan.PRIVATE_BLOCKS))}",
                remedy="name the private network of a VPN or an office: the internet never reaches the dashboard",
            )


def _image(settings: Settings) -> Iterator[Problem]:
    # The tags of Ray's own images, and of those that `make image` builds, begin with the version of Ray inside.
    inside = re.search(r"(?:rayproject/ray-ml|/ray):(\d+\.\d+\.\d+)\b", settings.ray.image)
    if inside is not None and inside[1] != settings.ray.version:
        yield Problem(
            key="ray.version",
            value=settings.ray.version,
            allowed=f"the version inside oasis:ray.image, which is {inside[1]}",
            remedy="correct the version, or remove oasis:ray.image and build a new one with `make image`",
        )
    if tuple(map(int, settings.ray.version.split("."))) < (2, 52, 0):
        yield Problem(
            key="ray.version",
            value=settings.ray.version,
            allowed="2.52.0 or newer",
            remedy="choose a newer Ray: older ones have no token authentication, and anyone who reaches them runs code",
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


def _budget(settings: Settings) -> Iterator[Problem]:
    cost = settings.cost
    given = {"billing_account": cost.billing_account, "monthly_usd": cost.monthly_usd}
    for key, other in itertools.permutations(given):
        if given[key] is not None and given[other] is None:
            yield Problem(
                key=f"cost.{key}",
                value=given[key],
                allowed=f"only beside oasis:cost.{other}: a budget needs an amount and an account",
                remedy=f"set oasis:cost.{other} too, or remove this one for a stack without a budget",
            )


def _labels(settings: Settings) -> Iterator[Problem]:
    for key, value in settings.labels.items():
        if not names.LABEL_KEY_PATTERN.fullmatch(key) or not names.LABEL_VALUE_PATTERN.fullmatch(value):
            yield Problem(
                key=f"labels.{key}",
                value=value,
                allowed="at most 63 of a-z, 0-9, _ and - in key and value; the key starts with a letter, not with goog",
                remedy="rename it, or put it in quotes if it is a date",
            )


def _emptied(settings: Settings) -> Iterator[Problem]:
    # An import has no `forceDestroy`, and nothing sets it while the bucket is adopted; without it the provider does not
    # delete a bucket with objects in it (hashicorp/terraform-provider-google 2026-08-21, resource_storage_bucket.go).
    for key, bucket in (("data", settings.data), ("runs", settings.runs)):
        if bucket.adopt and not bucket.keep:
            yield Problem(
                key=f"{key}.keep",
                value=bucket.keep,
                allowed=f"true while oasis:{key}.adopt is true: no destroy can empty a bucket that is being taken over",
                remedy="set it to true for one `pulumi up`; for a destroy that deletes the bucket, then set both to "
                "false and run `pulumi up` once more before it",
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
    (("cluster.system_pool", "ray.head"), _head),
    (("cluster.system_pool", "ray.head", "gpu.capacity"), _queued_heads),
    (("teams", "ray.namespace", "cluster.system_pool", "cluster.security_group", "ray.head", "gpu.capacity"), _teams),
    (("ray.cpu_workers_max", "ray.cpu_worker", "cluster.cpu_pool"), _cpu_workers),
    (("ray.dashboard_access", "ray.dashboard_client_ranges"), _dashboard),
    (("ray.version", "ray.image"), _image),
    (("data", "runs"), _soft_delete),
    (("data", "runs"), _emptied),
    (("cost.billing_account", "cost.monthly_usd"), _budget),
    (("labels",), _labels),
)
"""Each rule, with the settings that it reads."""
