"""GKE's autoscaler: keeps each pool at its minimum of nodes, adds nodes for pods without a place, removes idle ones.

A pod that selects a ComputeClass gets a node of the first pool in the class's order that has room, as on real GKE. A
pool grows to its maximum at once, unless `limits.json` leaves it no quota or its zone no capacity, or `faults.json`
makes its growth (`gke.grow.NAME`) fail. Then the next pool in order is asked, and this one is skipped until its backoff
is over, by the emulated cloud's clock. By the same clock, a flex-start node ends after its pool's run duration, and a
Spot node once its zone's capacity is less than what runs there: the node is tainted, its pods are told to end, and it
is removed. An event on a waiting pod says what became of it (`NotTriggerScaleUp`: it fits no pool, or the pools are
full; `FailedScaleUp`: no quota or capacity), in the words of kubernetes/autoscaler
(processors/status/eventing_scale_up_processor.go) and, for a failure, of GKE's own autoscaler
(k8s.io/gke-autoscaling/cluster-autoscaler, package events). Pods do not make a pool with queued provisioning grow:
`provisioning` adds its nodes.
"""

from __future__ import annotations

import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from emulator.gke import records as gke_records
from emulator.gke.fit import fits, free, is_over, refusal
from emulator.gke.node_shapes import COMPUTE_CLASS_LABEL, POOL_LABEL, Pool, networks_of, node
from emulator.gke.provisioning import QueuedProvisioning
from emulator.google import faults, limits
from emulator.google.apis.kubernetes_engine.instance_groups import base_name
from emulator.google.cloud import Cloud
from emulator.google.machines import UnknownMachineError
from emulator.kubernetes.api import Api, Body, KindNotServedError, is_true

IDLE_SECONDS = 10.0
"""How long a node without pods is kept; real GKE keeps it for the class's consolidation delay, in minutes."""

BACKOFF_SECONDS, MOST_BACKOFF_SECONDS, FORGOTTEN_SECONDS = 300.0, 1800.0, 10800.0
"""How long a pool that could not grow is skipped, at first and at most. The time doubles with each failure, until the
pool had none for the last of these (kubernetes/autoscaler, defaults of `--initial-node-group-backoff-duration`,
`--max-node-group-backoff-duration` and `--node-group-backoff-reset-timeout`; what GKE sets is not published)."""

NOTICE_SECONDS, SPOT_GRACE_SECONDS = 30.0, 15
"""How long a Spot node stays once Google has told it to end, and the longest that its pods then have (GKE
documentation, "Spot VMs"). Google does not publish the notice that a flex-start node gets: here it is the same."""

_NOTICE = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
"""Taint of a node that was told to end (GoogleCloudPlatform/k8s-node-termination-handler)."""

_PREFIX = "gke-"


class Autoscaler:
    """The autoscaler of one cluster."""

    def __init__(self, api: Api, cloud: Cloud) -> None:
        self._api, self._cloud = api, cloud
        self._idle_since: dict[str, float] = {}
        self._backoff: dict[str, tuple[float, float]] = {}
        """For each pool, until when it is skipped, and for how long in all."""
        self._born: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        """For each node that was told to end, when it is removed."""
        self._told: set[str] = set()
        self._said: dict[str, tuple[str, str]] = {}
        self._nodes: list[Body] = []
        self._queue = QueuedProvisioning(
            api, cloud, self._add_queued, lambda pool: self._shape(pool, "", pool.zones[0])
        )

    def step(self) -> None:
        """Add and remove nodes, and write what became of pools and clusters into the emulated cloud."""
        pools = {
            found.body["name"]: Pool(identity=found.name, body=found.body)
            for found in self._cloud.list(gke_records.POOL_KIND)
        }
        nodes = [found for found in self._api.list("v1", "Node") if POOL_LABEL in found["metadata"].get("labels", {})]
        self._forget_all_but({found["metadata"]["name"] for found in nodes})
        pods = self._without_orphans(self._api.list("v1", "Pod"), nodes)
        for found in [found for found in nodes if _pool_of(found) not in pools]:
            self._remove(found)
            nodes.remove(found)
        for pool in pools.values():
            for _ in range(pool.minimum - _count(nodes, pool)):
                self._add(pool, nodes)
        self._end(pools, nodes, pods)
        awaited = self._scale_up(pools, nodes, pods)
        self._nodes = nodes
        self._queue.step(pools.values(), lambda pool: _count(nodes, pool))
        self._scale_down(pools, nodes, pods, awaited)
        for pool in pools.values():
            self._record(pool, nodes)

    def _record(self, pool: Pool, nodes: list[Body]) -> None:
        zones = Counter(_zone_of(found) for found in nodes if _pool_of(found) == pool.name)
        gke_records.record_pool(self._cloud, pool, zones)

    def _end(self, pools: dict[str, Pool], nodes: list[Body], pods: list[Body]) -> None:
        """Tell nodes to end whose time is over or whose machine Google reclaims, and remove those whose notice has
        expired."""
        now = self._cloud.now()
        for found in list(nodes):
            name = found["metadata"]["name"]
            if name in self._ends:
                if now >= self._ends[name]:
                    self._remove(found)
                    nodes.remove(found)
                continue
            lasts = str(pools[_pool_of(found)].config.get("maxRunDuration", "")).rstrip("s")
            if lasts and now - self._born.setdefault(name, now) >= float(lasts):
                self._give_notice(found, pods)
        spot: defaultdict[str, list[Body]] = defaultdict(list)
        for found in nodes:
            if pools[_pool_of(found)].config.get("spot") and found["metadata"]["name"] not in self._ends:
                spot[_zone_of(found)].append(found)
        for zone, running in spot.items():
            taken_back = limits.surplus(self._cloud, zone, len(running))
            for found in running[len(running) - taken_back :]:
                self._give_notice(found, pods)

    def _give_notice(self, found: Body, pods: list[Body]) -> None:
        name = found["metadata"]["name"]
        self._ends[name] = self._cloud.now() + NOTICE_SECONDS
        self._api.merge(found, {"spec": {"taints": [*(found["spec"].get("taints") or []), _NOTICE]}})
        for pod in pods:
            if pod["spec"].get("nodeName") == name and not _is_daemon(pod):
                asked = pod["spec"].get("terminationGracePeriodSeconds", SPOT_GRACE_SECONDS)
                self._api.delete(pod, gracePeriodSeconds=min(asked, SPOT_GRACE_SECONDS))

    def _scale_up(self, pools: dict[str, Pool], nodes: list[Body], pods: list[Body]) -> set[str]:
        """Find or add a node for every pod that waits for one; returns the names of nodes that await pods."""
        awaited: set[str] = set()
        by_node = _by_node(pods)
        room = {found["metadata"]["name"]: free(found, by_node[found["metadata"]["name"]]) for found in nodes}
        for pod in filter(_waits_for_a_node, pods):
            target = next((found for found in nodes if fits(pod, found, room[found["metadata"]["name"]])), None)
            if target is None:
                target, event = self._grow(pod, pools, nodes)
                self._tell(pod, *event)
            if target is None:
                continue
            name = target["metadata"]["name"]
            # The scheduler will place the pod; until then no second node is added for it.
            by_node[name].append(pod)
            room[name] = free(target, by_node[name])
            awaited.add(name)
        return awaited

    def _grow(self, pod: Body, pools: dict[str, Pool], nodes: list[Body]) -> tuple[Body | None, tuple[str, str]]:
        """A new node that holds the pod, if one was available, and the event's reason and message either way."""
        reasons: Counter[str] = Counter()
        now = self._cloud.now()  # one time for all pools: if the clock moved between two, the later one would be tried
        for pool in self._candidates(pod, pools):
            reason = self._obstacle(pod, pool, nodes, now)
            if not reason and (failure := self._failure(pool)):
                self._pass_over(pool)
                zones = ", ".join(pool.zones)
                return None, (
                    "FailedScaleUp",
                    f"Node scale up in zones {zones} associated with this pod failed: {failure}. Pod is at risk of not "
                    "being scheduled.",
                )
            if not reason and (added := self._add(pool, nodes)):
                count = _count(nodes, pool)
                message = f"pod triggered scale-up: [{{{pool.name} {count - 1}->{count} (max: {pool.maximum})}}]"
                return added, ("TriggeredScaleUp", message)
            reasons[reason] += 1
        message = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if reason)
        return None, ("NotTriggerScaleUp", f"pod didn't trigger scale-up: {message}")

    def _failure(self, pool: Pool) -> str:
        """Why a pool that should grow cannot; empty if it can."""
        if fault := faults.meet(self._cloud, f"gke.grow.{pool.name}"):
            return fault.message
        project = pool.identity.split("/")[1]
        found = [limits.shortage(self._cloud, project, pool.config, zone) for zone in pool.zones]
        return found[0] if all(found) else ""

    def _pass_over(self, pool: Pool) -> None:
        now = self._cloud.now()
        until, last = self._backoff.get(pool.name, (0.0, 0.0))
        again = last and now - until < FORGOTTEN_SECONDS
        seconds = min(2 * last, MOST_BACKOFF_SECONDS) if again else BACKOFF_SECONDS
        self._backoff[pool.name] = (now + seconds, seconds)

    def _obstacle(self, pod: Body, pool: Pool, nodes: list[Body], now: float) -> str:
        sample = self._shape(pool, "sample", pool.zones[0])
        if sample is None:
            return "node(s) of an unknown machine type"
        if obstacle := refusal(pod, sample, free(sample, [])):
            return obstacle
        if pool.queued:
            return "node(s) that only a ProvisioningRequest brings"
        if self._backoff.get(pool.name, (0.0, 0.0))[0] > now:
            return "in backoff after failed scale-up"
        return "max node group size reached" if _count(nodes, pool) >= pool.maximum else ""

    def _tell(self, pod: Body, reason: str, message: str) -> None:
        """Write an event, unless it repeats the pod's last one."""
        metadata = pod["metadata"]
        if self._said.get(metadata["uid"]) == (reason, message):
            return
        self._said[metadata["uid"]] = (reason, message)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        about = {key: metadata[key] for key in ("name", "namespace", "uid")}
        self._api.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": f"{metadata['name']}.{secrets.token_hex(8)}",
                    "namespace": metadata["namespace"],
                },
                "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
                "reason": reason,
                "message": message,
                "type": "Warning" if reason == "FailedScaleUp" else "Normal",
                "source": {"component": "cluster-autoscaler"},
                "firstTimestamp": now[:19] + "Z",
                "lastTimestamp": now[:19] + "Z",
                "eventTime": now,
                "reportingComponent": "cluster-autoscaler",
                "reportingInstance": "emulator",
                "action": "ScaleUp",
                "count": 1,
            }
        )

    def _candidates(self, pod: Body, pools: dict[str, Pool]) -> Iterable[Pool]:
        wanted = (pod["spec"].get("nodeSelector") or {}).get(COMPUTE_CLASS_LABEL)
        if wanted is None:
            return pools.values()
        try:
            found = self._api.get("cloud.google.com/v1", "ComputeClass", wanted)
        except KindNotServedError:
            return []
        rules = found["spec"].get("priorities", []) if found else []
        return [pools[name] for rule in rules for name in rule.get("nodepools", []) if name in pools]

    def _scale_down(self, pools: dict[str, Pool], nodes: list[Body], pods: list[Body], awaited: set[str]) -> None:
        busy = awaited | {pod["spec"].get("nodeName") for pod in pods if not _is_daemon(pod) and not is_over(pod)}
        now = self._cloud.now()
        for found in list(nodes):
            name = found["metadata"]["name"]
            if name in busy or self._queue.holds(found):
                self._idle_since.pop(name, None)
                continue
            idle = now - self._idle_since.setdefault(name, now)
            pool = pools[_pool_of(found)]
            if idle >= IDLE_SECONDS and _count(nodes, pool) > pool.minimum:
                self._remove(found)
                nodes.remove(found)

    def _add(self, pool: Pool, nodes: list[Body]) -> Body | None:
        used = [_zone_of(found) for found in nodes if _pool_of(found) == pool.name]
        return self._add_in(pool, nodes, min(pool.zones, key=used.count), {})

    def _add_queued(self, pool: Pool, zone: str, labels: Mapping[str, str]) -> Body | None:
        return self._add_in(pool, self._nodes, zone, labels)

    def _add_in(self, pool: Pool, nodes: list[Body], zone: str, labels: Mapping[str, str]) -> Body | None:
        name = f"{base_name(pool.identity, zone)}-{secrets.token_hex(2)}"
        body = self._shape(pool, name, zone)
        if body is None:
            return None
        body["metadata"]["labels"] |= labels
        made = self._api.create(body)
        # A Node is created without its status, as a kubelet would; kwok fills in the rest.
        self._api.merge(made, {"status": body["status"]}, subresource="status")
        self._born[name] = self._cloud.now()
        nodes.append(body)
        self._record(pool, nodes)
        return body

    def _shape(self, pool: Pool, name: str, zone: str) -> Body | None:
        try:
            return node(pool, name, zone, self._networks(pool))
        except UnknownMachineError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                print(error, file=sys.stderr, flush=True)
            return None

    def _networks(self, pool: Pool) -> list[str]:
        if not pool.nics:
            return []
        try:
            sets = self._api.list("networking.gke.io/v1", "GKENetworkParamSet")
            networks = self._api.list("networking.gke.io/v1", "Network")
        except KindNotServedError:
            return []
        return networks_of(pool, [found for found in sets if is_true(found, "Ready")], networks)

    def _remove(self, found: Body) -> None:
        # Before its pods, or a DaemonSet would at once put a new pod on it.
        self._api.delete(found)
        for known in (self._idle_since, self._born, self._ends):
            known.pop(found["metadata"]["name"], None)

    def _forget_all_but(self, names: set[str]) -> None:
        """Forget nodes that somebody else has deleted: there are few names, so one may come again."""
        for known in (self._idle_since, self._born, self._ends):
            for gone in known.keys() - names:
                del known[gone]

    def _without_orphans(self, pods: list[Body], nodes: list[Body]) -> list[Body]:
        """Delete the pods of nodes that are gone, as nothing else could end them; returns the other pods."""
        names = {found["metadata"]["name"] for found in nodes}
        orphans = [pod for pod in pods if (pod["spec"].get("nodeName") or "").startswith(_PREFIX)]
        orphans = [pod for pod in orphans if pod["spec"]["nodeName"] not in names]
        for pod in orphans:
            self._api.delete(pod, gracePeriodSeconds=0)
        return [pod for pod in pods if pod not in orphans]


def _pool_of(found: Body) -> str:
    return str(found["metadata"]["labels"][POOL_LABEL])


def _zone_of(found: Body) -> str:
    return str(found["metadata"]["labels"].get("topology.kubernetes.io/zone"))


def _count(nodes: Iterable[Body], pool: Pool) -> int:
    return sum(_pool_of(found) == pool.name for found in nodes)


def _by_node(pods: Iterable[Body]) -> defaultdict[str, list[Body]]:
    found: defaultdict[str, list[Body]] = defaultdict(list)
    for pod in pods:
        if not is_over(pod) and pod["spec"].get("nodeName"):
            found[pod["spec"]["nodeName"]].append(pod)
    return found


def _waits_for_a_node(pod: Body) -> bool:
    if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"] or _is_daemon(pod):
        return False
    conditions = pod.get("status", {}).get("conditions") or []
    return any(entry["type"] == "PodScheduled" and entry.get("reason") == "Unschedulable" for entry in conditions)


def _is_daemon(pod: Body) -> bool:
    return any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", []))
