"""Gangs of two nodes each, while Google gives, refuses, ends and takes back what they wait for in a random order."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime

from benchmarks.gang_trials.stage import KUEUE, REQUEST_LABEL, REQUESTS, Event, Stage, conditions, holds
from benchmarks.harness import figures
from benchmarks.harness.figures import say, spread, today
from emulator.gke.provisioning import BOOKING_EXPIRED, CAPACITY_REVOKED, Told
from emulator.kubernetes.api import ApiError, Body
from tests.support.queued_jobs import documented_job
from workloads.reporting.progress import counted

GANG, AT_ONCE = 2, 10
"""Nodes of a gang, and gangs at a time."""

SETTINGS = {"oasis:gpu": {"capacity": [{"mode": "queued", "max_nodes": GANG * AT_ONCE}]}}

WATCHED = ("nodes", "pods", "provisioningrequests")

FAILED = Told("True", "ResourcePoolExhausted", "GCE out of resources")

MOST_SECONDS = 1200.0
"""Longest time without a gang coming or ending; after it, the remaining gangs count as wrong."""

STEPS = {"give": 6, "fail": 3, "expire": 2, "revoke": 2, "finish": 4}
"""What Google or a gang may do next, and the relative frequency of each."""


def measure(stage: Stage, count: int, seed: int) -> tuple[figures.Record, list[str]]:
    """(what happened to the gangs; each gang that was placed only in part)"""
    stage.ask_again_at_once(3)
    stage.hold(0)
    chance, made, steps, ends = random.Random(seed), 0, Counter[str](), Counter[str]()
    known, since = 0, time.monotonic()
    while True:
        jobs = _without_those_that_ended(stage, ends)
        for _ in range(min(AT_ONCE - len(jobs), count - made)):
            stage.api.create(documented_job(f"gang-{made}", GANG))
            made += 1
            if made % 50 == 0:
                say(f"{made} of {count} gangs")
        if not jobs and made == count:
            break
        if known != made + ends.total():
            known, since = made + ends.total(), time.monotonic()
        elif time.monotonic() - since > MOST_SECONDS:
            return {"date": today()}, [
                f"{counted(len(jobs), 'gang')} left, none of which ended for {MOST_SECONDS:.0f} s"
            ]
        [step] = chance.choices(list(STEPS), weights=list(STEPS.values()))
        steps[step] += _take(stage, step, chance)
        time.sleep(chance.uniform(0, 0.2))
    wrong, waits, late = judged(stage.record.events())
    if len(waits) < ends["finished"]:
        wrong.append(f"the record has {len(waits)} placed gangs, and {ends['finished']} finished")
    found = {
        "date": today(),
        "gangs": count,
        "steps": dict(steps),
        "ends": dict(ends),
        "placed, and their record judged": len(waits),
        "placed by halves": len(wrong),
        "seconds that a pod lived whose nodes were taken back before it was made": spread(late),
        "seconds from the first node to the last pod": spread(waits),
    }
    return found, wrong


def _without_those_that_ended(stage: Stage, ends: Counter[str]) -> list[Body]:
    """Count and remove jobs that are over or were given up; returns the jobs that are still there."""
    given_up = {
        workload["metadata"]["ownerReferences"][0]["name"]
        for workload in stage.api.list(KUEUE, "Workload", "ray")
        if workload["spec"].get("active") is False and workload["metadata"].get("ownerReferences")
    }
    left = []
    for job in stage.api.list("batch/v1", "Job", "ray"):
        over = holds(job, "Complete") or job["metadata"]["name"] in given_up
        if over and "deletionTimestamp" not in job["metadata"]:
            ends["finished" if holds(job, "Complete") else "given up"] += 1
            stage.api.delete(job, "Foreground")
        left.append(job)
    return left


def _take(stage: Stage, step: str, chance: random.Random) -> int:
    """Take the next step with one gang that it can happen to; returns 0 if there is none."""
    nodes = stage.queued_nodes()
    if step == "give":
        stage.hold(len(nodes) + GANG)
        return 1
    stage.hold(len(nodes))
    if step == "finish":
        return _finish_one(stage, chance)
    requests = stage.api.list(REQUESTS, "ProvisioningRequest", "ray")
    over = ("Failed", "CapacityRevoked")
    alive = [one for one in requests if not any(holds(one, condition) for condition in over)]
    able = [one for one in alive if holds(one, "Provisioned") == (step != "fail")]
    if not able:
        return 0
    request = chance.choice(able)
    told = {
        "fail": {"Failed": FAILED},
        "expire": {"BookingExpired": BOOKING_EXPIRED},
        "revoke": {"BookingExpired": BOOKING_EXPIRED, "CapacityRevoked": CAPACITY_REVOKED},
    }[step]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [one for one in conditions(request) if one["type"] not in told]
    written = [{"type": kind, **said._asdict(), "lastTransitionTime": now} for kind, said in told.items()]
    # With the revision that was read, so that later changes are not undone.
    seen = {"metadata": {"resourceVersion": request["metadata"]["resourceVersion"]}}
    status = {"status": {"conditions": [*kept, *written]}}
    try:
        stage.api.merge(request, {**seen, **status}, subresource="status")
    except ApiError:
        return 0
    if step == "revoke":
        name = request["status"]["provisioningClassDetails"]["ResizeRequestName"]
        for node in nodes:
            if node["metadata"]["labels"].get(REQUEST_LABEL) == name:
                stage.api.delete(node)
    return 1


def _finish_one(stage: Stage, chance: random.Random) -> int:
    whole = stage.running_gangs(GANG)
    if not whole:
        return 0
    for pod in chance.choice(whole):
        stage.succeed(pod)
    return 1


def judged(events: list[Event]) -> tuple[list[str], list[float], list[float]]:
    """(each pod that was made before all of its gang's nodes were there, or placed on another gang's node, and each
    gang that was placed only in part; seconds from the first node of a request to the last of its pods on a node;
    lifetimes in seconds of pods made after Google had reclaimed the nodes, before Kueue learned of it)"""
    seen = _Seen()
    for event in events:
        seen.tell(event)
    wrong = [*seen.wrong, *(f"{name}, whose nodes had been taken back, is still there" for name in seen.too_late)]
    waits = list[float]()
    for request, pods in seen.placed.items():
        if len(pods) >= GANG and request in seen.born:
            waits.append(max(0.0, sorted(pods.values())[GANG - 1] - seen.born[request]))
        elif len(pods) < GANG and request not in seen.revoked:
            wrong.append(f"of {request} {len(pods)} of {GANG} pods were placed")
    return wrong, waits, seen.late


@dataclass
class _Seen:
    """What the events show, one after another."""

    wrong: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    too_late: dict[str, float] = field(default_factory=dict)
    """Pods that exist though their nodes were reclaimed before they were made, and since when."""
    revoked: set[str] = field(default_factory=set)
    born: dict[str, float] = field(default_factory=dict)
    """When the first node of a request came."""
    placed: defaultdict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """For each request, when each of its pods got a node."""
    _nodes: dict[str, str] = field(default_factory=dict)
    """Existing nodes, and the request for which each came; empty: none."""

    def tell(self, event: Event) -> None:
        """Judge one change."""
        if event.kind == "ProvisioningRequest" and holds(event.body, "CapacityRevoked"):
            self.revoked.add(event.body["status"]["provisioningClassDetails"]["ResizeRequestName"])
        elif event.kind == "Node":
            self._tell_of_node(event, event.body["metadata"]["name"])
        elif event.kind == "Pod" and "job-name" in event.body["metadata"].get("labels", {}):
            self._tell_of_pod(event, event.body["metadata"]["name"])

    def _tell_of_node(self, event: Event, name: str) -> None:
        request = event.body["metadata"]["labels"].get(REQUEST_LABEL, "")
        if event.type == "DELETED":
            self._nodes.pop(name, None)
            return
        self._nodes[name] = request
        self.born.setdefault(request, event.seconds)

    def _tell_of_pod(self, event: Event, name: str) -> None:
        if event.type == "DELETED":
            if name in self.too_late:
                self.late.append(event.seconds - self.too_late.pop(name))
            return
        request = event.body["spec"].get("nodeSelector", {}).get(REQUEST_LABEL, "none")
        there, host = list(self._nodes.values()).count(request), event.body["spec"].get("nodeName")
        if event.type == "ADDED" and request in self.revoked:
            self.too_late[name] = event.seconds
        elif event.type == "ADDED" and there != GANG:
            self.wrong.append(f"{name} was made while {there} nodes of {request} were there")
        if host and name not in self.placed[request]:
            self.placed[request][name] = event.seconds
            if self._nodes.get(host, request) != request:
                self.wrong.append(f"{name}, which is for {request}, went to a node of {self._nodes[host] or 'no gang'}")
