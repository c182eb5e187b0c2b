"""The holders of a cluster's GPUs: pods grouped by the job or RayCluster that made them, and since when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from workloads.cluster.stack import DeployedStack
from workloads.jobs.paid_nodes import GPU, QUEUED, gpus_of

RAY_JOB, RAY_CLUSTER, JOB, STACK_JOB = "RayJob", "RayCluster", "Job", "job"
"""Kinds of holders that can be ended; the last is a job on the stack's own RayCluster. Another holder has the kind of
its pods' owner, or `Pod`."""

Body = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GpuPod:
    """A pod that has GPUs."""

    name: str
    node: str
    address: str
    """Its IP address, by which Ray knows it too."""
    gpus: int
    began: float | None
    """Unix time since when its holder has it: its container with the GPUs began, or a job took it over; None before."""
    queued: bool
    """Whether it may be on a node of Kueue's queue."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Something that has GPUs, and can be ended as a whole or not at all."""

    kind: str
    namespace: str
    name: str
    uid: str
    """Of the object; empty for a job on the stack's own RayCluster."""
    pods: tuple[GpuPod, ...]
    command: str = ""
    """Of a job on the stack's own RayCluster."""
    remark: str = ""
    """Why it has them, or why no more is known, where that is not plain."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def gpus(self) -> int:
        """How many."""
        return sum(pod.gpus for pod in self.pods)

    @property
    def nodes(self) -> dict[str, bool]:
        """Names of the nodes that they are on, and whether each is of the queue."""
        return {pod.node: pod.queued for pod in self.pods}

    @property
    def began(self) -> float | None:
        """Unix time since when it has had the first of them; None while no container runs."""
        return min((pod.began for pod in self.pods if pod.began is not None), default=None)


def look(stack: DeployedStack) -> list[Holder]:
    """All of a stack's cluster, or of a team's namespace.

    Raises:
        WorkloadError: kubectl fails, or may not show pods.
    """
    everywhere = () if stack.environment.team else ("--all-namespaces",)
    pods: defaultdict[tuple[str, str, str, str], list[GpuPod]] = defaultdict(list)
    makers: dict[tuple[str, str], tuple[str, str, str]] = {}
    for pod in stack.get("pods", *everywhere).get("items", []):
        gone = "deletionTimestamp" in pod["metadata"]
        if gone or not pod["spec"].get("nodeName") or not (gpus := gpus_of(pod)):
            continue
        namespace, owner = pod["metadata"]["namespace"], _owner(pod)
        if owner[0] == RAY_CLUSTER and namespace == stack.environment.ray_namespace:
            if (namespace, owner[1]) not in makers:
                makers[namespace, owner[1]] = _maker(stack, owner)
            owner = makers[namespace, owner[1]]
        kind, name, uid = owner
        pods[kind, namespace, name, uid].append(_pod(pod, gpus))
    return [
        Holder(kind=kind, namespace=namespace, name=name, uid=uid, pods=tuple(held))
        for (kind, namespace, name, uid), held in pods.items()
    ]


def _maker(stack: DeployedStack, owner: tuple[str, str, str]) -> tuple[str, str, str]:
    """What made a RayCluster, if not its user."""
    cluster = stack.get("raycluster", owner[1], "--ignore-not-found")
    kind, name, uid = _owner(cluster) if cluster else ("", "", "")
    return (kind, name, uid) if kind.startswith("Ray") else owner


def _owner(body: Body) -> tuple[str, str, str]:
    """Kind, name and uid of what controls an object; its own where nothing does."""
    metadata = body["metadata"]
    owners = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    owner = owners[0] if owners else {"kind": body.get("kind", "Pod"), **metadata}
    return str(owner["kind"]), str(owner["name"]), str(owner.get("uid", ""))


def _pod(pod: Body, gpus: int) -> GpuPod:
    status = pod.get("status", {})
    return GpuPod(
        name=pod["metadata"]["name"],
        node=pod["spec"]["nodeName"],
        address=str(status.get("podIP", "")),
        gpus=gpus,
        began=_began(pod),
        queued=any(one.get("key") == QUEUED for one in pod["spec"].get("tolerations") or ()),
    )


def _began(pod: Body) -> float | None:
    """When the last of its containers with GPUs began; before that, an image of many GB may have been fetched."""
    takers = {one.get("name") for one in pod["spec"]["containers"] if GPU in one.get("resources", {}).get("limits", {})}
    states = [one for one in pod.get("status", {}).get("containerStatuses") or () if one.get("name") in takers]
    began = [one.get("state", {}).get("running", {}).get("startedAt") for one in states]
    if len(began) < len(takers) or not all(began):
        return None
    return max(datetime.fromisoformat(moment).timestamp() for moment in began)
