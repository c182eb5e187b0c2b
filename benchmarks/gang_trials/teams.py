"""Jobs of three teams on a queue of four nodes: who runs, who waits, and who must give back borrowed nodes."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.gang_trials.stage import Event, Stage, conditions, holds
from benchmarks.harness import figures
from benchmarks.harness.figures import say, spread, today
from emulator.kubernetes.api import Body
from tests.support.queued_jobs import documented_job

NODES = 4
OWN = {"vision": 2, "speech": 1, "robots": 1}
PRIORITY = {"vision": 0, "speech": 10, "robots": 0}
SETTINGS = {
    "oasis:gpu": {"capacity": [{"mode": "queued", "max_nodes": NODES}]},
    "oasis:cluster": {"system_pool": {"max_nodes": NODES + 1}},
    "oasis:teams": [{"name": team, "gpu_nodes": own, "priority": PRIORITY[team]} for team, own in OWN.items()],
}

WATCHED = ("workloads",)

ARRIVING_SECONDS = 60.0


MOST_SECONDS = 1800.0
"""Time after which unfinished jobs count as wrong; a job that Kueue has given up never finishes."""


@dataclass(frozen=True)
class Work:
    """A future job."""

    name: str
    team: str
    nodes: int
    arrives: float
    """Seconds after the first job."""
    lasts: float
    """Seconds that its pods run, from when all of them run."""


def measure(stage: Stage, count: int, seed: int) -> tuple[figures.Record, list[str]]:
    """(how long the jobs took, what was taken back from whom; what does not respect quota or priority)"""
    chance = random.Random(seed)
    coming = sorted((_work(number, chance) for number in range(count)), key=lambda work: work.arrives)
    work, running, ended = {one.name: one for one in coming}, dict[str, float](), set[str]()
    begun, told = time.monotonic(), 0
    while len(ended) < count:
        now = time.monotonic()
        if now - begun > MOST_SECONDS:
            return {"date": today()}, [f"{count - len(ended)} jobs are not done after {MOST_SECONDS:.0f} s"]
        while coming and coming[0].arrives <= now - begun:
            one = coming.pop(0)
            stage.api.create(documented_job(one.name, one.nodes, one.team))
        _run_on(stage, work, running, now)
        for job in stage.api.list("batch/v1", "Job"):
            if holds(job, "Complete") and job["metadata"]["name"] not in ended:
                ended.add(job["metadata"]["name"])
        if len(ended) >= told + 10:
            told = len(ended)
            say(f"{told} of {count} jobs are done after {now - begun:.0f} s")
        time.sleep(0.2)
    seconds = time.monotonic() - begun
    seen = Seen(work)
    for event in stage.record.events():
        seen.tell(event)
    if len(seen.waited) < count:
        seen.wrong.append(f"the record has {len(seen.waited)} jobs that got quota, and {count} are done")
    return {
        "date": today(),
        "jobs": count,
        "nodes": NODES,
        "seconds": round(seconds),
        "taken back": dict(seen.preempted),
        "seconds from arrival to its nodes' quota": {
            team: spread([waited for name, waited in seen.waited.items() if work[name].team == team]) for team in OWN
        },
        "against quota or priority": len(seen.wrong),
        "seconds by which an overtaken job of the same team and size is older": spread(seen.overtaken),
    }, seen.wrong


def _work(number: int, chance: random.Random) -> Work:
    return Work(
        name=f"job-{number}",
        team=chance.choice(list(OWN)),
        nodes=chance.choices((1, 2, 3), weights=(6, 3, 1))[0],
        arrives=chance.uniform(0, ARRIVING_SECONDS) if number else 0.0,
        lasts=chance.uniform(1, 4),
    )


def _run_on(stage: Stage, work: dict[str, Work], running: dict[str, float], now: float) -> None:
    """End a job's pods once all of them have run for its time; a job that lost its pods starts again."""
    pods = dict[str, list[Body]]()
    for pod in stage.api.list("v1", "Pod", labelSelector="job-name", fieldSelector="status.phase=Running"):
        if "deletionTimestamp" not in pod["metadata"]:
            pods.setdefault(pod["metadata"]["labels"]["job-name"], []).append(pod)
    for name, one in work.items():
        if len(pods.get(name, [])) < one.nodes:
            running.pop(name, None)
        elif now - running.setdefault(name, now) >= one.lasts:
            for pod in pods[name]:
                stage.succeed(pod)


@dataclass
class Seen:
    """What the Workloads' changes show, one after another."""

    work: dict[str, Work]
    wrong: list[str] = field(default_factory=list)
    preempted: Counter[str] = field(default_factory=Counter[str])
    waited: dict[str, float] = field(default_factory=dict)
    _uids: dict[str, Work] = field(default_factory=dict)
    """Each job, by the UID of its Workload."""
    _held: dict[str, Work] = field(default_factory=dict)
    """The jobs that have quota now, by Workload."""
    overtaken: list[float] = field(default_factory=list)
    """For each job that got quota before an older one of the same team and size, how many seconds older that one is, in
    the whole seconds of Kubernetes' clock, which Kueue uses."""
    _waiting: dict[str, tuple[Work, datetime, float]] = field(default_factory=dict)
    """The jobs that never had quota, by Workload: with their own time stamp, and the second in which they came."""

    def tell(self, event: Event) -> None:
        """Judge one change."""
        owners = event.body["metadata"].get("ownerReferences") or []
        one = self.work.get(owners[0]["name"]) if owners else None
        if one is None:
            return
        workload = event.body["metadata"]["name"]
        self._uids[event.body["metadata"]["uid"]] = one
        quota = event.type != "DELETED" and holds(event.body, "QuotaReserved") and not holds(event.body, "Finished")
        if event.type == "ADDED" and not quota:
            born = datetime.fromisoformat(event.body["metadata"]["creationTimestamp"])
            self._waiting[workload] = (one, born, event.seconds)
        if not quota:
            if self._held.pop(workload, None) and not holds(event.body, "Finished"):
                self._lost(one, event)
        elif workload not in self._held:
            self._held[workload] = one
            self._got(workload, one, event)

    def _used(self, team: str = "") -> int:
        return sum(one.nodes for one in self._held.values() if team in ("", one.team))

    def _got(self, workload: str, one: Work, event: Event) -> None:
        if self._used() > NODES:
            self.wrong.append(f"{one.name} brings the total to {self._used()} nodes of {NODES}")
        waiting = self._waiting.pop(workload, None)
        if waiting is None:
            return
        self.waited[one.name] = event.seconds - waiting[2]
        still = self._waiting.values()
        alike = (born for other, born, _ in still if (other.team, other.nodes) == (one.team, one.nodes))
        older = (waiting[1] - min(alike, default=waiting[1])).total_seconds()
        if older > 0:
            self.overtaken.append(older)

    def _lost(self, one: Work, event: Event) -> None:
        told = {said["type"]: said for said in conditions(event.body) if said["status"] == "True"}
        if told.get("Evicted", {}).get("reason") != "Preempted":
            return
        reason, message = told["Preempted"]["reason"], told["Preempted"]["message"]
        self.preempted[f"{one.team}: {reason}"] += 1
        if self._used(one.team) + one.nodes <= OWN[one.team]:
            self.wrong.append(f"{one.name} lost its nodes, and {one.team} had borrowed none: {message}")
        [taker] = _TAKER.findall(message) or [""]
        other = self._uids.get(taker)
        if other is None:
            self.wrong.append(f"{one.name} lost its nodes to nobody that is known: {message}")
        elif reason == "InCohortReclaimWhileBorrowing" and PRIORITY[other.team] <= PRIORITY[one.team]:
            self.wrong.append(f"{one.name} lost its nodes to {other.name}, a borrower of no higher priority")
        elif reason not in ("InCohortReclaimWhileBorrowing", "InCohortReclamation"):
            self.wrong.append(f"{one.name} lost its nodes for another reason: {message}")


_TAKER = re.compile(r"\(UID: ([^,)]+)")
"""The Workload that took another's quota (kubernetes-sigs/kueue v0.19.2, pkg/scheduler/preemption)."""
