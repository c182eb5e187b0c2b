"""GKE's queued provisioning: all nodes of a ProvisioningRequest at once, or none.

"Documentation" is Google Cloud's "Run a large-scale workload with flex-start with queued provisioning"; the conditions
are those of kubernetes/autoscaler, cluster-autoscaler/apis/provisioningrequest. A request waits until pool, quota and
one zone have room for all of its nodes; then they are there together, for the pods that consume the request alone. The
words of what a request waits for, and of a refusal, are not published: these are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from emulator.gke.fit import free, refusal, requests
from emulator.gke.node_shapes import REQUEST_LABEL, Pool
from emulator.google import faults, limits
from emulator.google.cloud import Cloud
from emulator.kubernetes.api import Api, Body, KindNotServedError

VERSION, KIND = "autoscaling.x-k8s.io/v1", "ProvisioningRequest"

CLASS = "queued-provisioning.gke.io"

BOOKED_SECONDS = 600.0
"""How long nodes wait for the pods that consume their request (documentation, "after Provisioned")."""

MAX_RUN_SECONDS = 604_800
"""Longest `maxRunDurationSeconds` (documentation)."""

MOST_NODES = 1000
"""Of one request (documentation, limitations)."""

_CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"

Grow = Callable[[Pool, str, Mapping[str, str]], Body | None]
"""Adds a node of a pool in a zone, with these labels."""


class QueuedProvisioning:
    """The requests of one cluster."""

    def __init__(self, api: Api, cloud: Cloud, grow: Grow, sample: Callable[[Pool], Body | None]) -> None:
        """`grow` adds a node, `sample` is what one of a pool would look like."""
        self._api, self._cloud, self._grow, self._sample = api, cloud, grow, sample
        self._booked: dict[str, float] = {}
        """By resize request, until when its nodes wait for pods."""

    def step(self, pools: Iterable[Pool], counts: Callable[[Pool], int], pods: Iterable[Body]) -> None:
        """Judge every request of the class, and bring what can be had.

        Args:
            pools: all of the cluster.
            counts: number of nodes that a pool has now.
            pods: all of the cluster.
        """
        try:
            found = self._api.list(VERSION, KIND)
        except KindNotServedError:
            return
        ours = [request for request in found if request["spec"]["provisioningClassName"] == CLASS]
        queued = [pool for pool in pools if pool.queued]
        for request in sorted(ours, key=lambda one: str(one["metadata"]["creationTimestamp"])):
            if _is(request, "Provisioned"):
                self._watch(request, pods)
            elif not _is(request, "Failed"):
                self._provide(request, queued, counts)
        there = {_resize_request(request) for request in ours if _is(request, "Provisioned")}
        self._booked = {name: until for name, until in self._booked.items() if name in there}

    def holds(self, node: Body) -> bool:
        """True if an idle node is still waited for by its request."""
        name = node["metadata"]["labels"].get(REQUEST_LABEL, "")
        return self._booked.get(name, 0.0) > self._cloud.now()

    def _provide(self, request: Body, queued: list[Pool], counts: Callable[[Pool], int]) -> None:
        template = self._template(request)
        if problem := _problem(request, template):
            self._tell(request, Failed=("True", "InvalidProvisioningRequest", problem))
            return
        assert template is not None
        count = int(request["spec"]["podSets"][0]["count"])
        zone, words = "", "there is no node pool with queued provisioning"
        for pool in queued:
            nodes, words = self._needed(pool, template, count)
            if not words:
                zone, words = self._zone(pool, nodes, counts(pool))
            if not words:
                self._bring(request, pool, zone, nodes)
                return
        accepted = ("True", "Accepted", "The request was taken into the queue.")
        self._tell(request, Accepted=accepted, Provisioned=("False", "Waiting", f"Waiting for resources: {words}."))

    def _needed(self, pool: Pool, template: Body, count: int) -> tuple[int, str]:
        """How many of a pool's nodes hold that many pods; or why one can never hold any."""
        sample = self._sample(pool)
        if sample is None:
            return 0, "a machine type that is not known"
        room = free(sample, [])
        if obstacle := refusal(template, sample, room):
            return 0, f"{obstacle} in pool {pool.name}"
        wanted = requests(template)
        each = min(int(room[key] / amount + 1e-9) for key, amount in wanted.items() if amount)
        return math.ceil(count / each), ""

    def _zone(self, pool: Pool, nodes: int, there: int) -> tuple[str, str]:
        """A zone that has all of the nodes (documentation: a request is met in one zone), or why there is none."""
        if fault := faults.meet(self._cloud, f"gke.grow.{pool.name}"):
            return "", fault.message
        if there + nodes > pool.maximum:
            return "", f"pool {pool.name} has {there} of at most {pool.maximum} nodes, {nodes} more are needed"
        project, words = pool.identity.split("/")[1], ""
        for zone in pool.zones:
            words = limits.shortage(self._cloud, project, pool.config, zone, nodes)
            if not words:
                return zone, ""
        return "", words

    def _bring(self, request: Body, pool: Pool, zone: str, nodes: int) -> None:
        name = f"gke-{request['metadata']['name']}-{request['metadata']['uid'][:8]}"[-63:].strip("-")
        for _ in range(nodes):
            self._grow(pool, zone, {REQUEST_LABEL: name})
        self._booked[name] = self._cloud.now() + BOOKED_SECONDS
        self._tell(
            request,
            {"ResizeRequestName": name, "NodePoolName": pool.name, "SelectedZone": zone},
            Accepted=("True", "Accepted", "The request was taken into the queue."),
            Provisioned=("True", "Provisioned", f"{nodes} nodes of pool {pool.name} are there."),
        )

    def _watch(self, request: Body, pods: Iterable[Body]) -> None:
        """Let the nodes go that nobody came for in time."""
        name = _resize_request(request)
        until = self._booked.setdefault(name, self._cloud.now() + BOOKED_SECONDS)
        if _is(request, "BookingExpired") or until > self._cloud.now():
            return
        consumers = request["metadata"]["namespace"], request["metadata"]["name"]
        if not any(_consumes(pod) == consumers and pod["spec"].get("nodeName") for pod in pods):
            minutes = BOOKED_SECONDS / 60
            words = f"No pod has consumed the request within {minutes:g} minutes."
            self._tell(request, BookingExpired=("True", "BookingExpired", words))

    def _template(self, request: Body) -> Body | None:
        """The pod that a request is for, with the name of a pod."""
        [first, *_] = request["spec"]["podSets"]
        namespace = request["metadata"]["namespace"]
        found = self._api.get("v1", "PodTemplate", first["podTemplateRef"]["name"], namespace)
        return None if found is None else {"metadata": {}, **found["template"]}

    def _tell(
        self, request: Body, details: Mapping[str, str] | None = None, **conditions: tuple[str, str, str]
    ) -> None:
        """Write conditions of (status, reason, message), unless they say so already."""
        before = {entry["type"]: entry for entry in request.get("status", {}).get("conditions") or []}
        changed = [kind for kind, told in conditions.items() if _told(before.get(kind)) != told]
        if not changed:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for kind in changed:
            status, reason, message = conditions[kind]
            before[kind] = {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": now,
            }
        status = {"conditions": [*before.values()], **({"provisioningClassDetails": dict(details)} if details else {})}
        self._api.merge(request, {"status": status}, subresource="status")


def _problem(request: Body, template: Body | None) -> str:
    """Why GKE would never meet a request; empty if it may."""
    spec = request["spec"]
    if len(spec["podSets"]) != 1:  # the words: ray-project/ray issue 57839
        return "the queued provisioning feature currently supports only single PodSet per request"
    if template is None:
        return f"there is no PodTemplate {spec['podSets'][0]['podTemplateRef']['name']}"
    if int(spec["podSets"][0]["count"]) > MOST_NODES:
        return f"a request has at most {MOST_NODES} nodes"
    seconds = str(spec.get("parameters", {}).get("maxRunDurationSeconds", MAX_RUN_SECONDS))
    if not seconds.isdigit() or not 0 < int(seconds) <= MAX_RUN_SECONDS:
        return f"maxRunDurationSeconds is {seconds}, it must be from 1 to {MAX_RUN_SECONDS}"
    return ""


def _resize_request(request: Body) -> str:
    return str(request.get("status", {}).get("provisioningClassDetails", {}).get("ResizeRequestName", ""))


def _consumes(pod: Body) -> tuple[str, str]:
    annotations = pod["metadata"].get("annotations") or {}
    return pod["metadata"]["namespace"], str(annotations.get(_CONSUMES, ""))


def _is(request: Body, kind: str) -> bool:
    conditions = request.get("status", {}).get("conditions") or []
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


def _told(condition: Body | None) -> tuple[str, str, str]:
    found = condition or {}
    return str(found.get("status", "")), str(found.get("reason", "")), str(found.get("message", ""))
