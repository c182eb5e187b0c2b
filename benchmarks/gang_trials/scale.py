"""A thousand pods' worth of jobs over queues of different sizes: what Kueue, the emulated GKE, the scheduler take."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from benchmarks.gang_trials.stage import REQUEST_LABEL, Event, Stage, holds
from benchmarks.harness import figures
from benchmarks.harness.figures import say, spread, today
from emulator.gke.nodes import IDLE_SECONDS
from emulator.google.cloud import Cloud
from emulator.kubernetes.api import Body
from tests.support.queued_jobs import documented_job

PODS, GANG = 1000, 2

WATCHED = ("workloads", "pods", "nodes")


def settings(nodes: int) -> dict[str, Any]:
    """A queue of so many nodes."""
    return {"oasis:gpu": {"capacity": [{"mode": "queued", "max_nodes": nodes}]}}


def measure(stage: Stage, nodes: int) -> figures.Record:
    """Make all jobs at once, end each pod as soon as its whole job runs, and time each step of each job."""
    cloud = Cloud(stage.state.directory)
    begun, count, done = time.monotonic(), PODS // GANG, 0
    for number in range(count):
        stage.api.create(documented_job(f"job-{number}", GANG))
    created = time.monotonic() - begun
    while done < count:
        gangs = defaultdict[str, list[Body]](list)
        for pod in stage.api.list("v1", "Pod", "ray", labelSelector="job-name", fieldSelector="status.phase=Running"):
            gangs[pod["metadata"]["labels"]["job-name"]].append(pod)
        for pod in (pod for pods in gangs.values() if len(pods) == GANG for pod in pods):
            stage.succeed(pod)
        cloud.turn(IDLE_SECONDS)  # their nodes go at once, for the next ones
        before, done = done, sum(holds(job, "Complete") for job in stage.api.list("batch/v1", "Job", "ray"))
        if done // 100 > before // 100:
            say(f"{nodes} nodes: {done} of {count} jobs are done after {time.monotonic() - begun:.0f} s")
    return {
        "date": today(),
        "jobs": count,
        "pods": PODS,
        "seconds to make the jobs": round(created, 1),
        "seconds": round(time.monotonic() - begun, 1),
        **{f"seconds {step}": spread(times) for step, times in timed(stage.record.events()).items()},
    }


def timed(events: list[Event]) -> dict[str, list[float]]:
    """Seconds of each job: Kueue's, from its Workload to its quota where there was room at once; Google's, from there
    to its nodes; Kueue's again, to its pods; the scheduler's, to where each pod runs."""
    seen = defaultdict[str, dict[str, float]](dict)
    pods, bound, hosts = dict[str, float](), dict[str, float](), defaultdict[str, list[float]](list)
    request_of = dict[str, str]()
    for event in events:
        metadata = event.body["metadata"]
        if event.kind == "Workload" and metadata.get("ownerReferences"):
            job = seen[metadata["ownerReferences"][0]["name"]]
            job.setdefault("came", event.seconds)
            for condition in ("QuotaReserved", "Admitted"):
                if holds(event.body, condition):
                    job.setdefault(condition, event.seconds)
        elif event.kind == "Node" and event.type == "ADDED" and REQUEST_LABEL in metadata["labels"]:
            hosts[metadata["labels"][REQUEST_LABEL]].append(event.seconds)
        elif event.kind == "Pod" and "job-name" in metadata.get("labels", {}):
            pods.setdefault(metadata["name"], event.seconds)
            request_of[metadata["labels"]["job-name"]] = event.body["spec"]["nodeSelector"][REQUEST_LABEL]
            seen[metadata["labels"]["job-name"]].setdefault("pods", event.seconds)
            if event.body["spec"].get("nodeName"):
                bound.setdefault(metadata["name"], event.seconds)
    jobs = {name: job for name, job in seen.items() if {"came", "QuotaReserved", "Admitted", "pods"} <= job.keys()}
    there = {name: max(hosts[request_of[name]]) for name in jobs if hosts[request_of[name]]}
    return {
        "from a job to its quota": [job["QuotaReserved"] - job["came"] for job in jobs.values()],
        "from the quota to the nodes": [there[name] - jobs[name]["QuotaReserved"] for name in there],
        "from the nodes to the first pod": [jobs[name]["pods"] - there[name] for name in there],
        "from a pod to its node": [bound[name] - pods[name] for name in bound],
    }
