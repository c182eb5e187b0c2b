"""What the queue's benchmark calls wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from benchmarks.gang_trials import orders
from benchmarks.gang_trials.stage import REQUEST_LABEL, Event
from benchmarks.gang_trials.teams import Seen, Work

WORK = {
    name: Work(name=name, team=team, nodes=nodes, arrives=0.0, lasts=1.0)
    for name, team, nodes in (("a", "vision", 1), ("b", "vision", 1), ("c", "speech", 3), ("d", "robots", 1))
}


@pytest.fixture
def revisions() -> Iterator[int]:
    return count(1)


def _event(revision: int, kind: str, name: str, **body: Any) -> Event:
    metadata = {"name": name, "labels": body.pop("labels", {}), **body.pop("metadata", {})}
    return Event(revision, float(revision), body.pop("type", "ADDED"), kind, {"metadata": metadata, **body})


@pytest.mark.parametrize(
    ("nodes", "host", "words"),
    [(2, "node-0", []), (1, "node-0", ["was made while 1 nodes"]), (2, "other", ["went to a node of s"])],
)
def test_pods_of_a_gang_without_all_of_its_nodes_and_on_others_are_found(
    revisions: Iterator[int], nodes: int, host: str, words: list[str]
) -> None:
    given = [f"node-{number}" for number in range(nodes)]
    events = [_event(next(revisions), "Node", name, labels={REQUEST_LABEL: "r"}) for name in given]
    events.append(_event(next(revisions), "Node", "other", labels={REQUEST_LABEL: "s"}))
    spec = {"nodeSelector": {REQUEST_LABEL: "r"}}
    events.append(_event(next(revisions), "Pod", "p", labels={"job-name": "j"}, spec=spec))
    bound = {**spec, "nodeName": host}
    events.append(_event(next(revisions), "Pod", "p", type="MODIFIED", labels={"job-name": "j"}, spec=bound))

    wrong, _, _ = orders.judged(events)

    assert len(wrong) == len(words) and all(said in found for said, found in zip(words, wrong, strict=True))


def test_what_does_not_respect_quota_is_found_and_who_is_overtaken(
    revisions: Iterator[int],
) -> None:
    def told(job: str, *conditions: tuple[str, str], first: bool = False) -> None:
        stated = [{"type": kind, "status": "True", "reason": reason, "message": "m"} for kind, reason in conditions]
        at = f"2026-11-28T00:00:{list(WORK).index(job):02}Z"
        owner = {"ownerReferences": [{"name": job}], "creationTimestamp": at}
        how = "ADDED" if first else "MODIFIED"
        seen.tell(
            _event(next(revisions), "Workload", f"job-{job}", type=how, metadata=owner, status={"conditions": stated})
        )

    seen = Seen(WORK)
    for job in WORK:
        told(job, first=True)
    told("b", ("QuotaReserved", ""))
    assert (seen.overtaken, seen.wrong) == ([1.0], [])  # a is a second older
    told("c", ("QuotaReserved", ""))
    told("d", ("QuotaReserved", ""))
    assert seen.wrong == ["d makes 5 nodes of 4"]
    told("b", ("Evicted", "Preempted"), ("Preempted", "InCohortReclamation"))
    assert seen.wrong[1:] == ["b lost its nodes, and vision had borrowed none: m"]
    told("c", ("Evicted", "Preempted"), ("Preempted", "InCohortReclamation"))
    assert len(seen.wrong) == 2  # it had borrowed two
    assert dict(seen.preempted) == {"vision: InCohortReclamation": 1, "speech: InCohortReclamation": 1}
