"""Gangs of two nodes each, while Google gives, refuses, ends and takes back what they wait for in a random order."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime

from benchmarks.gang_trials.stage import KUEUE, REQUEST_LABEL, REQUESTS, Event, Stage, conditions, holds
from benchmarks.harness import figures
from benchmarks.harness.figures import say, spread, today
from emulator.gke.provisioning import BOOKING_EXPIRED, CAPACITY_REVOKED, Told
from emulator.kubernetes.api import ApiError, Body
from tests.support.queued_jobs import documented_job

GANG, AT_ONCE = 2, 10
"""Nodes of a gang, and gangs that there are at a time."""

SETTINGS = {"oasis:gpu": {"capacity": [{"mode": "queued", "max_nodes": GANG * AT_ONCE}]}}

WATCHED = ("nodes", "pods", "provisioningrequests")

FAILED = Told("True", "ResourcePoolExhausted", "GCE out of resources")

STEPS = {"give": 6, "fail": 3, "expire": 2, "revoke": 2, "finish": 4}
"""What Google or a gang may do next, and how often beside the others."""


def measure(stage: Stage, count: int, seed: int) -> tuple[figures.Record, list[str]]:
    """(what happened to so many gangs; each gang that was placed by halves)"""
    [asks] = stage.api.list(KUEUE, "ProvisioningRequestConfig")
    # A failed request is asked again after a minute; here at once, which changes no order.
    quick = {"backoffLimitCount": 3, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1}
    stage.api.merge(asks, {"spec": {"retryStrategy": quick}})
    stage.hold(0)
    chance, made, steps, ends = random.Random(seed), 0, Counter[str](), Counter[str]()
    while True:
        jobs = _without_those_that_ended(stage, ends)
        for _ in range(min(AT_ONCE - len(jobs), count - made)):
            stage.api.create(documented_job(f"gang-{made}", GANG))
            made += 1
            if made % 50 == 0:
                say(f"{made} of {count} gangs")
        if not jobs and made == count:
            break
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
    """Jobs that are still there; those that are over, or were given up, are counted and removed."""
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
    """Do what is next to one gang that it can happen to; 0 where there is none."""
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
    # With the revision that was read: what has become of it meanwhile is not undone.
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
    gangs = defaultdict[str, list[Body]](list)
    for pod in stage.api.list("v1", "Pod", "ray", labelSelector="job-name", fieldSelector="status.phase=Running"):
        gangs[pod["metadata"]["labels"]["job-name"]].append(pod)
    whole = [pods for pods in gangs.values() if len(pods) == GANG]
    if not whole:
        return 0
    for pod in chance.choice(whole):
        stage.succeed(pod)
    return 1


def judged(events: list[Event]) -> tuple[list[str], list[float], list[float]]:
    """(each pod of a gang that was made before all of the gang's nodes were there, or placed on others; seconds from
    the first node of a request to the last of its pods on a node; seconds that those pods lived that were made after
    Google had taken the nodes back, of which Kueue had not heard)"""
    nodes, revoked, too_late, late = dict[str, str](), set[str](), dict[str, float](), list[float]()
    born, placed, wrong = dict[str, float](), defaultdict[str, dict[str, float]](dict), list[str]()
    for event in events:
        name = event.body["metadata"]["name"]
        if event.kind == "ProvisioningRequest" and holds(event.body, "CapacityRevoked"):
            revoked.add(event.body["status"]["provisioningClassDetails"]["ResizeRequestName"])
        elif event.kind == "Pod" and event.type == "DELETED" and name in too_late:
            late.append(event.seconds - too_late.pop(name))
        elif event.kind == "Node":
            request = event.body["metadata"]["labels"].get(REQUEST_LABEL)
            if event.type == "DELETED":
                nodes.pop(name, None)
            elif request:
                nodes[name] = request
                born.setdefault(request, event.seconds)
        elif event.kind == "Pod" and event.type != "DELETED" and "job-name" in event.body["metadata"].get("labels", {}):
            request = event.body["spec"].get("nodeSelector", {}).get(REQUEST_LABEL, "none")
            there, host = list(nodes.values()).count(request), event.body["spec"].get("nodeName")
            if event.type == "ADDED" and request in revoked:
                too_late[name] = event.seconds
            elif event.type == "ADDED" and there != GANG:
                wrong.append(f"{name} was made while {there} nodes of {request} were there")
            if host and name not in placed[request]:
                placed[request][name] = event.seconds
                if host in nodes and nodes[host] != request:
                    wrong.append(f"{name}, which is for {request}, went to a node of {nodes[host]}")
    whole = [request for request, pods in placed.items() if len(pods) >= GANG and request in born]
    wrong += [f"{name}, which was made too late, is still there" for name in too_late]
    return wrong, [sorted(placed[request].values())[GANG - 1] - born[request] for request in whole], late
