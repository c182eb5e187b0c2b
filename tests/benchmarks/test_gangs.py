"""What the queue's benchmark calls wrong."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gang_trials import orders, scale
from benchmarks.gang_trials.stage import REQUEST_LABEL, Event
from benchmarks.gang_trials.teams import Seen, Work

WORK = {
    name: Work(name=name, team=team, nodes=nodes, arrives=0.0, lasts=1.0)
    for name, team, nodes in (("a", "vision", 1), ("b", "vision", 1), ("c", "speech", 3), ("d", "robots", 1))
}


def _event(revision: int, kind: str, name: str, **body: Any) -> Event:
    metadata = {"name": name, "labels": body.pop("labels", {}), **body.pop("metadata", {})}
    return Event(revision, float(revision), body.pop("type", "ADDED"), kind, {"metadata": metadata, **body})


def test_a_gang_that_never_ends_is_called_wrong_instead_of_being_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = {"metadata": {"name": "gang-0"}}
    api = SimpleNamespace(create=lambda body: None, list=lambda version, kind, *_: [job] if kind == "Job" else [])
    calls = {"hold": lambda nodes: None, "ask_again_at_once": lambda times: None, "running_gangs": lambda size: []}
    stage: Any = SimpleNamespace(api=api, queued_nodes=list, **calls)
    monkeypatch.setattr(orders, "MOST_SECONDS", 1.0)
    _, wrong = orders.measure(stage, 1, seed=1)
    assert wrong == ["1 gang left, none of which ended for 1 s"]


@pytest.mark.parametrize(
    ("nodes", "host", "words"),
    [
        (2, "node-0", []),
        (1, "node-0", ["was made while 1 nodes"]),
        (2, "other", ["went to a node of s"]),
        (2, "plain", ["went to a node of no gang"]),
    ],
)
def test_gangs_placed_by_halves_without_all_of_their_nodes_and_on_others_are_found(
    nodes: int, host: str, words: list[str]
) -> None:
    revisions = count(1)
    given = [f"node-{number}" for number in range(nodes)]
    events = [_event(next(revisions), "Node", name, labels={REQUEST_LABEL: "r"}) for name in given]
    events.append(_event(next(revisions), "Node", "other", labels={REQUEST_LABEL: "s"}))
    events.append(_event(next(revisions), "Node", "plain"))
    spec = {"nodeSelector": {REQUEST_LABEL: "r"}}
    events.append(_event(next(revisions), "Pod", "p", labels={"job-name": "j"}, spec=spec))
    bound = {**spec, "nodeName": host}
    events.append(_event(next(revisions), "Pod", "p", type="MODIFIED", labels={"job-name": "j"}, spec=bound))

    wrong, _, _ = orders.judged(events)

    expected = [*words, "of r 1 of 2 pods were placed"]
    assert len(wrong) == len(expected) and all(said in found for said, found in zip(expected, wrong, strict=True))
    bound = {**spec, "nodeName": "node-0"}
    events.append(_event(next(revisions), "Pod", "q", type="MODIFIED", labels={"job-name": "j"}, spec=bound))
    assert len(orders.judged(events)[0]) == len(words)


def test_what_does_not_respect_quota_is_found_and_who_is_overtaken() -> None:
    revisions = count(1)

    def told(job: str, *conditions: tuple[str, str, str], first: bool = False) -> None:
        stated = [{"type": kind, "status": "True", "reason": why, "message": said} for kind, why, said in conditions]
        at = f"2026-11-28T00:00:{list(WORK).index(job):02}Z"
        metadata = {"ownerReferences": [{"name": job}], "creationTimestamp": at, "uid": f"uid-{job}"}
        how, status = "ADDED" if first else "MODIFIED", {"conditions": stated}
        seen.tell(_event(next(revisions), "Workload", f"job-{job}", type=how, metadata=metadata, status=status))

    def lost(job: str, to: str, reason: str) -> list[str]:
        before = len(seen.wrong)
        told(job, ("Evicted", "Preempted", ""), ("Preempted", reason, f"for a workload (UID: uid-{to}, JobUID: u)"))
        return seen.wrong[before:]

    seen = Seen(WORK)
    for job in WORK:
        told(job, first=True)
    told("b", ("QuotaReserved", "", ""))
    assert (seen.overtaken, seen.wrong) == ([1.0], [])  # a is a second older
    told("c", ("QuotaReserved", "", ""))
    told("d", ("QuotaReserved", "", ""))
    assert seen.wrong == ["d brings the total to 5 nodes of 4"]
    [own] = lost("b", "c", "InCohortReclamation")
    assert "vision had borrowed none" in own
    assert lost("c", "a", "InCohortReclamation") == []  # it had borrowed two
    told("c", ("QuotaReserved", "", ""))
    assert lost("c", "a", "InCohortReclaimWhileBorrowing") == [
        "c lost its nodes to a, a borrower of no higher priority"
    ]
    told("c", ("QuotaReserved", "", ""))
    assert "for another reason" in lost("c", "a", "Other")[0]
    told("c", ("QuotaReserved", "", ""))
    assert "nobody that is known" in lost("c", "z", "InCohortReclamation")[0]
    assert seen.preempted["speech: InCohortReclamation"] == 2


def test_each_step_of_a_job_is_timed_from_what_the_last_pod_or_the_first_word_of_it_shows() -> None:
    revisions = count(1)

    def told(kind: str, name: str, owner: str = "", condition: str = "", **body: Any) -> None:
        metadata = {"ownerReferences": [{"name": owner}]} if owner else {}
        status = {"conditions": [{"type": condition, "status": "True"}]} if condition else {}
        seen.tell(_event(next(revisions), kind, name, metadata=metadata, status=status, **body))

    seen, selector = scale.Seen(), {"nodeSelector": {REQUEST_LABEL: "r"}}
    told("Job", "job")  # at second 1
    told("Workload", "w", "job", "QuotaReserved")  # 2
    told("Workload", "w", "job", "QuotaReserved")
    told("ProvisioningRequest", "r", "w")  # 4
    told("ProvisioningRequest", "r", "w", "Provisioned")  # 5
    told("Pod", "other", labels={"job-name": "job"}, spec={})
    told("Pod", "a", labels={"job-name": "job"}, spec=selector)
    told("Pod", "a", labels={"job-name": "job"}, spec={**selector, "nodeName": "n"})
    assert seen.steps(1)["from the pods to their nodes"] == []
    told("Pod", "b", labels={"job-name": "job"}, spec=selector)  # 9
    told("Pod", "b", labels={"job-name": "job"}, spec={**selector, "nodeName": "m"})  # 10

    seen.times[scale.WARM_UP] = seen.times["job"]
    assert list(seen.steps(1).values()) == [[1.0], [2.0], [4.0], [1.0]]
    assert list(seen.steps(0).values()) == [[], [2.0], [4.0], [1.0]]  # the first step was a wait for quota
