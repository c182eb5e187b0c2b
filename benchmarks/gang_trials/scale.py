"""A thousand pods in jobs of two nodes, on queues of different sizes: how long each step of each job takes."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.gang_trials.stage import REQUEST_LABEL, Event, Stage, holds
from benchmarks.harness import figures
from benchmarks.harness.figures import say, spread
from tests.support.queued_jobs import documented_job

GANG = 2
"""Nodes of a job, one pod on each."""

WATCHED = ("jobs", "workloads", "provisioningrequests", "pods")

WARM_UP = "warm-up"
"""Name of a job that comes and goes before the others, so that every watch reports them from their start."""

MOST_SECONDS = 1200.0
"""Time after which unfinished jobs count as wrong."""

STEPS = {
    "from the job to its quota": "Kueue",
    "from the quota to the request for nodes": "Kueue",
    "from the nodes to the pods": "Kueue and the Job controller",
    "from the pods to their nodes": "kube-scheduler",
}
"""Steps of a job, and whose time each is; the time between request and nodes is Google's, which is emulated."""


def settings(nodes: int) -> dict[str, Any]:
    """Settings of a queue with so many nodes."""
    return {"oasis:gpu": {"capacity": [{"mode": "queued", "max_nodes": nodes}]}}


def measure(stage: Stage, nodes: int, pods: int) -> tuple[figures.Record, list[str]]:
    """Make all jobs at once; end each, and take its nodes away, as soon as all of its pods run.

    Args:
        stage: a platform with `settings(nodes)`.
        nodes: nodes of its queue.
        pods: pods of all jobs together.

    Returns:
        Figures, and jobs that never ended or whose record lacks a step.
    """
    stage.ask_again_at_once(100)
    stage.api.create(documented_job(WARM_UP, GANG))
    if problem := _until_done(stage, nodes, 1):
        return {}, [problem]
    count, begun = pods // GANG, time.monotonic()
    for number in range(count):
        stage.api.create(documented_job(f"job-{number}", GANG))
    created = time.monotonic() - begun
    say(f"{nodes} nodes: {count} jobs are there after {created:.0f} s")
    if problem := _until_done(stage, nodes, count + 1):
        return {}, [problem]
    seconds = time.monotonic() - begun
    seen = Seen()
    for event in stage.record.events():
        seen.tell(event)
    steps = seen.steps(at_once=nodes // GANG)
    placed = len(steps["from the pods to their nodes"])
    return {
        "seconds to make the jobs": round(created, 1),
        "seconds": round(seconds, 1),
        "jobs a minute": round(60 * count / seconds, 1),
        **{f"seconds {step}": spread(times) for step, times in steps.items()},
    }, [f"{nodes} nodes: the record has {placed} placed jobs, and {count} are done"] * (placed != count)


def _until_done(stage: Stage, nodes: int, count: int) -> str:
    """Finish running jobs until so many are done; returns why they are not if the time runs out."""
    begun, told, done = time.monotonic(), 0, 0
    while done < count:
        if time.monotonic() - begun > MOST_SECONDS:
            return f"{nodes} nodes: {count - done} of {count} jobs are not done after {MOST_SECONDS:.0f} s"
        _finish_those_that_run(stage)
        done = sum(holds(job, "Complete") for job in stage.api.list("batch/v1", "Job", "ray"))
        if done >= told + 100:
            told = done
            say(f"{nodes} nodes: {done} of {count} jobs are done after {time.monotonic() - begun:.0f} s")
        time.sleep(0.2)
    return ""


def _finish_those_that_run(stage: Stage) -> None:
    whole = [pod for pods in stage.running_gangs(GANG) for pod in pods]
    hosts = {pod["spec"]["nodeName"] for pod in whole}
    for pod in whole:
        stage.succeed(pod)
    for node in stage.queued_nodes() if hosts else ():
        if node["metadata"]["name"] in hosts:
            stage.api.delete(node)


@dataclass
class Seen:
    """When each step of each job was first reported."""

    times: defaultdict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    """By job."""
    _job_of: dict[str, str] = field(default_factory=dict)
    """By Workload."""
    _pods: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _bound: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def tell(self, event: Event) -> None:
        """Note one change."""
        metadata = event.body["metadata"]
        owners = [owner["name"] for owner in metadata.get("ownerReferences", ())]
        if event.kind == "Job":
            self._first(metadata["name"], "came", event)
        elif event.kind == "Workload" and owners:
            self._job_of[metadata["name"]] = owners[0]
            if holds(event.body, "QuotaReserved"):
                self._first(owners[0], "quota", event)
        elif event.kind == "ProvisioningRequest" and owners and owners[0] in self._job_of:
            job = self._job_of[owners[0]]
            self._first(job, "request", event)
            if holds(event.body, "Provisioned"):
                self._first(job, "nodes", event)
        elif event.kind == "Pod" and "job-name" in metadata.get("labels", {}):
            self._tell_of_pod(metadata["labels"]["job-name"], metadata["name"], event)

    def steps(self, at_once: int) -> dict[str, list[float]]:
        """Seconds of each step of each job for which all are known.

        Args:
            at_once: jobs that found the queue empty; the first step of all others is a wait for quota.
        """
        known = {"came", "quota", "request", "nodes", "pods", "bound"}
        whole = [job for name, job in self.times.items() if name != WARM_UP and known <= job.keys()]
        first = sorted(whole, key=lambda job: job["quota"])[:at_once]
        ends = (("came", "quota"), ("quota", "request"), ("nodes", "pods"), ("pods", "bound"))
        of = (first, whole, whole, whole)
        # Each kind has a watch of its own, which may be a moment late.
        return {
            step: [max(0.0, job[end] - job[start]) for job in jobs]
            for step, (start, end), jobs in zip(STEPS, ends, of, strict=True)
        }

    def _tell_of_pod(self, job: str, pod: str, event: Event) -> None:
        if REQUEST_LABEL not in event.body["spec"].get("nodeSelector", {}):
            return
        self._pods[job].add(pod)
        if len(self._pods[job]) == GANG:
            self._first(job, "pods", event)
        if event.body["spec"].get("nodeName"):
            self._bound[job].add(pod)
            if len(self._bound[job]) == GANG:
                self._first(job, "bound", event)

    def _first(self, job: str, step: str, event: Event) -> None:
        self.times[job].setdefault(step, event.seconds)


def plot(found: figures.Record, file: Path) -> None:
    """Draw the median and the range of each step, and the jobs a minute, over the size of the queue."""
    # One whose jobs did not end has none.
    last = f"seconds {list(STEPS)[-1]}"
    measured = [(int(name.partition(" ")[0]), of) for name, of in found.items() if name.endswith(" nodes")]
    sizes = {nodes: of for nodes, of in sorted(measured, key=lambda one: one[0]) if of.get(last)}
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    times, rate = figure.subplots(1, 2, width_ratios=(3, 2))
    for number, (step, owner) in enumerate(STEPS.items()):
        spreads = [sizes[nodes][f"seconds {step}"] for nodes in sizes]
        middle = [one["median"] for one in spreads]
        reach = [[one["median"] - one["least"] for one in spreads], [one["most"] - one["median"] for one in spreads]]
        beside = [nodes * 1.1**number for nodes in sizes]  # one would hide the other
        label = f"{step} ({owner})"
        times.errorbar(beside, middle, yerr=reach, marker="o", linestyle=":", capsize=3, label=label)
    times.set(xscale="log", yscale="symlog", xlabel="nodes of the queue", ylabel="seconds of a job: median and range")
    times.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    rate.plot(list(sizes), [sizes[nodes]["jobs a minute"] for nodes in sizes], marker="o", color="black")
    rate.set(xscale="log", xlabel="nodes of the queue", ylabel="jobs a minute")
    times.set_ylim(-0.1, 2 * max(of[f"seconds {step}"]["most"] for of in sizes.values() for step in STEPS))
    rate.set_ylim(0, 1.1 * max(of["jobs a minute"] for of in sizes.values()))
    for axes in (times, rate):
        axes.set_xticks(list(sizes), [f"{nodes:,}" for nodes in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    figure.savefig(file, dpi=150)
