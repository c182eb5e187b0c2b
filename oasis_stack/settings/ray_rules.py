"""Rules that the RayCluster's settings and the pools it runs on must keep together."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oasis_stack.facts import address_plan, pod_size
from oasis_stack.facts.machine import general_purpose
from oasis_stack.facts.problem import Problem

if TYPE_CHECKING:
    from oasis_stack.settings.settings import Settings

_SYSTEM_PODS = (1, 2)
"""vCPUs and GiB that kube-system's Deployments and KubeRay may take of a system node, beside what every node loses."""


def head(settings: Settings) -> Iterator[Problem]:
    head, machine_type = settings.ray.head, settings.cluster.system_pool.machine_type
    yield from _fits("ray.head", head.cpus, head.memory_gb, "system_pool", machine_type, _SYSTEM_PODS)


def cpu_workers(settings: Settings) -> Iterator[Problem]:
    ray, pool = settings.ray, settings.cluster.cpu_pool
    if ray.cpu_workers_max > pool.max_nodes:
        yield Problem(
            key="ray.cpu_workers_max",
            value=ray.cpu_workers_max,
            allowed=f"at most oasis:cluster.cpu_pool.max_nodes, which is {pool.max_nodes}: a CPU worker takes a node",
            remedy="lower it or raise the pool's max_nodes",
        )
    if ray.cpu_workers_max:
        yield from _fits("ray.cpu_worker", ray.cpu_worker.cpus, ray.cpu_worker.memory_gb, "cpu_pool", pool.machine_type)


def _fits(
    key: str, cpus: int, memory_gb: int, pool: str, machine_type: str, taken: tuple[int, int] = (0, 0)
) -> Iterator[Problem]:
    room = pod_size.gpu_pod(general_purpose(machine_type))
    rows = (("cpus", cpus, room.cpus - taken[0]), ("memory_gb", memory_gb, room.memory_gib - taken[1]))
    for name, asked, free in rows:
        if asked > free:
            yield Problem(
                key=f"{key}.{name}",
                value=asked,
                allowed=f"at most {free}, what a {machine_type} has free beside GKE's own share",
                remedy=f"lower it, or choose a larger oasis:cluster.{pool}.machine_type: it would never start",
            )


def dashboard(settings: Settings) -> Iterator[Problem]:
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


def image(settings: Settings) -> Iterator[Problem]:
    # Ray's own images, and those that `make image` builds, begin their tag with the version of Ray in them.
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
