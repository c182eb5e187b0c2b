"""GKE's queued provisioning: all nodes of a ProvisioningRequest at once, or none.

States, reasons, words and times are those of GoogleCloudPlatform/cluster-autoscaler (2026), which GKE runs:
pkg/provisioningrequests/, packages provreqstate, queuedwrapper, reconciler and scaleup. A request that no pool has room
for is retried for two minutes, and then fails. Any other request is accepted, and waits at Compute Engine, as a resize
request of one pool in one zone, until quota and zone have room for all of its nodes. Then they all appear together, for
the pods that consume the request alone; idle ones stay for ten minutes. Compute Engine's words during the wait are not
in that source: the autoscaler's words for other pools stand in (`limits.shortage`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from emulator.gke.fit import free, refusal, requests
from emulator.gke.node_shapes import REQUEST_LABEL, Pool
from emulator.google import faults, limits
from emulator.google.cloud import Cloud
from emulator.kubernetes.api import Api, Body, KindNotServedError, is_true

VERSION, KIND = "autoscaling.x-k8s.io/v1", "ProvisioningRequest"

CLASS = "queued-provisioning.gke.io"

RETRIED_SECONDS = 120.0
"""How long a request that no pool can meet is retried (scaleup, `pendingProvisioningRequestRetryPeriod`)."""

BOOKED_SECONDS = 600.0
"""How long idle nodes wait for pods (provreqstate, `BookingDuration`)."""

MAX_RUN_SECONDS = 604_800.0
"""How long nodes last unless the request says otherwise (queuedwrapper, `DefaultMaxRunDuration`)."""


class Told(NamedTuple):
    """What a condition says."""

    status: str
    reason: str
    message: str


ACCEPTED = Told("True", "SuccessfullyQueued", "Provisioning Request was successfully queued.")
PROVISIONED = Told("True", "Provisioned", "Provisioning Request was successfully provisioned.")
BOOKING_EXPIRED = Told(
    "True",
    "BookingExpired",
    "Capacity booking for the Provisioning Request has expired and the nodes are now candidates for scale down when "
    "underutilized.",
)
CAPACITY_REVOKED = Told(
    "True",
    "CapacityRevoked",
    "Capacity provisioned for the Provisioning Request was reclaimed and is no longer available in the cluster.",
)
# Newer versions accept several, unless Google has switched that off; ray-project/ray issue 57839 shows them refused.
ONE_SET = Told(
    "True",
    "MultiplePodSetsUnsupported",
    "Provisioning Request doesn't support multiple PodSets, please define only 1.",
)

Grow = Callable[[Pool, str, Mapping[str, str]], Body | None]
"""Adds a node of a pool in a zone, with these labels."""


class QueuedProvisioning:
    """The requests of one cluster."""

    def __init__(self, api: Api, cloud: Cloud, grow: Grow, sample: Callable[[Pool], Body | None]) -> None:
        """`grow` adds a node; `sample` returns what a node of a pool would look like."""
        self._api, self._cloud, self._grow, self._sample = api, cloud, grow, sample
        self._seen: dict[str, float] = {}
        """When each request came."""
        self._provided: dict[str, float] = {}
        """When the nodes of each resize request came."""

    def step(self, pools: Iterable[Pool], counts: Callable[[Pool], int]) -> None:
        """Judge every request of the class, and add the nodes that are available.

        Args:
            pools: all pools of the cluster.
            counts: number of nodes that a pool has now.
        """
        try:
            found = self._api.list(VERSION, KIND)
        except KindNotServedError:
            return
        ours = [request for request in found if request["spec"]["provisioningClassName"] == CLASS]
        # First: the requests that get nodes below were read before they had a name.
        names = {_resize_request(request) for request in ours}
        self._provided = {name: since for name, since in self._provided.items() if name in names}
        queued = [pool for pool in pools if pool.queued]
        for request in sorted(ours, key=lambda one: str(one["metadata"]["creationTimestamp"])):
            if is_true(request, "Failed") or is_true(request, "CapacityRevoked"):
                continue
            if is_true(request, "Provisioned"):
                self._age(request)
            elif len(request["spec"]["podSets"]) > 1:
                self._tell(request, Failed=ONE_SET)
            else:
                self._provide(request, queued, counts)

    def holds(self, node: Body) -> bool:
        """True if an idle node still waits for the pods of its request."""
        name = node["metadata"]["labels"].get(REQUEST_LABEL, "")
        return self._cloud.now() < self._provided.get(name, -math.inf) + BOOKED_SECONDS

    def _provide(self, request: Body, queued: list[Pool], counts: Callable[[Pool], int]) -> None:
        obstacle = Told("", "NoQueuedNodepoolAvailable", NO_POOL)
        template, count = self._template(request), int(request["spec"]["podSets"][0]["count"])
        for pool in queued:
            nodes, obstacle = self._needed(pool, template, count, counts(pool))
            if nodes:
                self._queue(request, pool, nodes)
                return
        now = self._cloud.now()
        if now - self._seen.setdefault(request["metadata"]["uid"], now) < RETRIED_SECONDS:
            self._tell(request, Accepted=obstacle._replace(status="False"))
        else:
            self._tell(request, Failed=obstacle._replace(status="True"))

    def _needed(self, pool: Pool, template: Body, count: int, there: int) -> tuple[int, Told]:
        """How many of a pool's nodes hold that many pods; 0, and why, if the pool cannot grow by them."""
        sample = self._sample(pool)
        room = free(sample, []) if sample else {}
        if obstacle := refusal(template, sample, room) if sample else "unknown machine type":
            message = f"{NOT_SCHEDULABLE}. Predicate checking errors: {pool.name} ({obstacle})"
            return 0, Told("", "ProvisioningRequestNotSchedulableInNodepool", message)
        wanted = requests(template)
        nodes = math.ceil(count / min(int(room[key] / amount + 1e-9) for key, amount in wanted.items() if amount))
        if there + nodes > pool.maximum:
            message = f"Max nodepool size reached, affected nodepools: {pool.name}"
            return 0, Told("", "NodepoolSizeReached", message)
        return nodes, Told("", "", "")

    def _queue(self, request: Body, pool: Pool, nodes: int) -> None:
        """Add the nodes if quota and one zone have room for all of them, or say why not."""
        metadata, project = request["metadata"], pool.identity.split("/")[1]
        fault = faults.meet(self._cloud, f"gke.grow.{pool.name}")
        short = {
            zone: fault.message if fault else limits.shortage(self._cloud, project, pool.config, zone, nodes)
            for zone in pool.zones
        }
        zone = next((zone for zone in pool.zones if not short[zone]), None)
        if zone is None:
            words = short[pool.zones[0]]
            reason = "QuotaExceeded" if "quota" in words else "ResourcePoolExhausted"
            self._tell(request, Accepted=ACCEPTED, Provisioned=Told("False", reason, words))
            return
        name = f"gke-{metadata['namespace']}-{metadata['name']}"[:46] + f"-{metadata['uid'].replace('-', '')[:16]}"
        for _ in range(nodes):
            self._grow(pool, zone, {REQUEST_LABEL: name})
        self._provided[name] = self._cloud.now()
        details = {"ResizeRequestName": name, "NodePoolName": pool.name, "SelectedZone": zone}
        self._tell(request, details, Accepted=ACCEPTED, Provisioned=PROVISIONED)

    def _age(self, request: Body) -> None:
        """Report when idle nodes may be removed, and when the nodes are gone."""
        lasts = request["spec"].get("parameters", {}).get("maxRunDurationSeconds", MAX_RUN_SECONDS)
        age = self._cloud.now() - self._provided.setdefault(_resize_request(request), self._cloud.now())
        if age >= float(lasts):
            self._tell(request, BookingExpired=BOOKING_EXPIRED, CapacityRevoked=CAPACITY_REVOKED)
        elif age >= BOOKED_SECONDS:
            self._tell(request, BookingExpired=BOOKING_EXPIRED)

    def _template(self, request: Body) -> Body:
        """The pod that a request is for, as the autoscaler makes one of its template."""
        [podset] = request["spec"]["podSets"]
        found = self._api.get("v1", "PodTemplate", podset["podTemplateRef"]["name"], request["metadata"]["namespace"])
        return {"metadata": {}, **(found["template"] if found else {"spec": {"containers": []}})}

    def _tell(self, request: Body, details: Mapping[str, str] | None = None, **conditions: Told) -> None:
        """Write conditions, unless they are already written."""
        before = {entry["type"]: entry for entry in request.get("status", {}).get("conditions") or []}
        changed = {kind: told for kind, told in conditions.items() if _told(before.get(kind, {})) != told}
        if not changed:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        written = {kind: {"type": kind, **told._asdict(), "lastTransitionTime": now} for kind, told in changed.items()}
        status: Body = {"conditions": [*(before | written).values()]}
        if details:
            status["provisioningClassDetails"] = dict(details)
        self._api.merge(request, {"status": status}, subresource="status")


NO_POOL = "No nodepool with QueuedProvisioning enabled is available for scale up"
NOT_SCHEDULABLE = "Provisioning Request's pods cannot be scheduled in the nodepool"


def _resize_request(request: Body) -> str:
    return str(request.get("status", {}).get("provisioningClassDetails", {}).get("ResizeRequestName", ""))


def _told(condition: Body) -> Told:
    return Told(*(str(condition.get(field, "")) for field in Told._fields))
