"""Destroys of the whole stack while jobs of a team and of nobody run, or wait for nodes, for quota, or for a queue that
is not there."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.gang_trials.stage import KUEUE, Stage, conditions, holds
from benchmarks.harness import figures
from benchmarks.harness.figures import median_and_range, today
from emulator import lifecycle
from emulator.google.cloud import Cloud
from emulator.machine.state import EmulatorError
from tests.support.queued_jobs import documented_job, queued_ray_job

SETTINGS = {"oasis:teams": [{"name": "vision", "gpu_nodes": 1}]}

MOST_JOBS, MOST_SECONDS = 6, 10.0
"""Jobs of a destroy, and how long they have until it starts."""


def trials(stage: Stage, numbers: range, seed: int) -> Iterator[figures.Record]:
    """Destroy the stack once for each number, each with jobs of its own, and make it again between two of them.

    Yields:
        What the jobs were at when a destroy began, how long it took, and what failed or stayed, after which there is
        no further one.
    """
    cloud, engine = Cloud(stage.state.directory), lifecycle.engine(stage.state, lambda _line: None, SETTINGS)
    for number in numbers:
        if number != numbers.start:
            lifecycle.deploy(stage.state, engine, lambda _line: None)
        _make_jobs(stage, random.Random(f"{seed} {number}"))
        met, begun = states(stage), time.monotonic()
        try:
            lifecycle.destroy(stage.state, engine, lambda _line: None)
        except EmulatorError as error:
            yield {"number": number, "seed": seed, "jobs": dict(met), "wrong": [f"destroy {number}: {error}"]}
            return
        seconds, inventory = round(time.monotonic() - begun, 2), cloud.inventory()
        left = [f"destroy {number} left {one.kind} {one.name}" for one in inventory.other]
        yield {"number": number, "seed": seed, "jobs": dict(met), "seconds": seconds, "wrong": left}
        for one in inventory.kept:  # the next stack starts without these
            if not one.kind.startswith("serviceusage/") and cloud.find(one.kind, one.name):
                cloud.delete(one.kind, one.name)


def summary(each: Sequence[figures.Record]) -> figures.Record:
    """All trials as figures, and one by one, so that a later run can continue from them."""
    seconds = [one["seconds"] for one in each if "seconds" in one]
    return {
        "date": today(),
        "destroys": len(seconds),
        "left or failed": sum(len(one["wrong"]) for one in each),
        "jobs": dict(sum((Counter(one["jobs"]) for one in each), Counter[str]())),
        "seconds each": median_and_range(seconds),
        "each": list(each),
    }


def _make_jobs(stage: Stage, chance: random.Random) -> None:
    stage.hold(chance.choice((None, 0, 1, 2)))
    for number in range(chance.randint(1, MOST_JOBS)):
        name, team = f"job-{number}", chance.choice(("", "vision"))
        if chance.random() < 0.3:
            stage.api.create(queued_ray_job(name, team))
        else:
            # Only jobs without a team may name another queue.
            queue = "gpu" if team else chance.choice(("gpu", "gpu", "nowhere"))
            stage.api.create(documented_job(name, chance.choice((1, 1, 2)), team, queue))
    time.sleep(chance.uniform(0, MOST_SECONDS))


def states(stage: Stage) -> Counter[str]:
    """How many jobs run, were let go, wait for nodes, for quota, or for a queue that is not there."""
    found = Counter[str]()
    for workload in stage.api.list(KUEUE, "Workload"):
        if holds(workload, "PodsReady"):
            found["running"] += 1
        elif holds(workload, "Admitted"):
            found["let go"] += 1
        elif holds(workload, "QuotaReserved"):
            found["waiting for nodes"] += 1
        else:
            unknown = any("doesn't exist" in said["message"] for said in conditions(workload))
            found["waiting for no queue" if unknown else "waiting for quota"] += 1
    return found
