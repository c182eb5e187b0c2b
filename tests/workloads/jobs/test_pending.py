"""What is said of pods without a node: that none can ever hold them, or that there is none to be had now."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.fake_ray import FakeRay
from tests.support.stub_kubectl import OUTPUTS
from workloads import __main__ as command_line
from workloads.cluster.capacity import WAITING
from workloads.doctor import cluster
from workloads.doctor import command as doctor
from workloads.doctor.finding import NotHere, Subject
from workloads.errors import PlaceError
from workloads.jobs import follow, pending
from workloads.reporting import progress

POD = {
    "metadata": {"name": "oasis-gpu-worker-x", "uid": "1", "labels": {"ray.io/group": "gpu"}},
    "status": {"phase": "Pending"},
}
NO_FIT = "1 node(s) didn't match Pod's node affinity/selector, 2 Insufficient memory"
NEVER, NO_CAPACITY = "no node of this stack can ever hold it", "Google has no node to give now"


def event(reason: str, message: str, second: int = 0, uid: str = "1") -> dict[str, Any]:
    return {
        "metadata": {},
        "involvedObject": {"kind": "Pod", "uid": uid},
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-11-24T10:00:{second:02}Z",
    }


def refused(reasons: str, second: int = 0) -> dict[str, Any]:
    return event("NotTriggerScaleUp", f"pod didn't trigger scale-up: {reasons}", second)


def failed(reason: str, second: int = 0) -> dict[str, Any]:
    text = f"Node scale up in zones us-central1-b associated with this pod failed: {reason}. "
    return event("FailedScaleUp", f"{text}Pod is at risk of not being scheduled.", second)


@pytest.mark.parametrize(
    ("events", "verdict", "words"),
    [
        ([refused(NO_FIT)], "never fits", "Insufficient memory"),
        ([refused("3 node(s) didn't match Pod's node affinity/selector")], "never fits", "affinity"),
        ([failed("GCE out of resources")], "no capacity", "GCE out of resources"),
        ([failed("GCE quota exceeded")], "no capacity", "GCE quota exceeded"),
        ([refused("2 Insufficient memory, 1 in backoff after failed scale-up")], "no capacity", "backoff"),
        ([refused("1 max node group size reached")], "no capacity", "max node group size"),
        ([event("TriggeredScaleUp", "pod triggered scale-up: [{x 0->1 (max: 2)}]")], "coming", ""),
        # The newest counts, in whatever order they are listed; the scheduler's own, and another pod's, do not.
        ([failed("GCE out of resources", 9), event("TriggeredScaleUp", "x", 5)], "no capacity", "out of resources"),
        ([event("TriggeredScaleUp", "x", 9), failed("GCE out of resources", 5)], "coming", ""),
        ([refused(NO_FIT), event("FailedScheduling", "0/2 nodes", 9)], "never fits", "memory"),
        ([event("FailedScaleUp", "x", uid="2")], "waiting", ""),
        ([], "waiting", ""),
    ],
)
def test_the_autoscalers_newest_word_is_the_verdict(
    events: list[dict[str, Any]], verdict: pending.Verdict, words: str
) -> None:
    [wait] = pending.judge([POD], events)

    assert wait.verdict == verdict
    assert words in wait.reason


def doctors_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the doctor says of pods without a node; the other checks take seconds."""
    monkeypatch.setattr(doctor, "CHECKS", {"nodes for pods": doctor.CHECKS["nodes for pods"]})
    command_line.main(["doctor", "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.thorough
@pytest.mark.parametrize(("events", "words"), [([refused(NO_FIT)], NEVER), ([failed("GCE stock-out")], NO_CAPACITY)])
def test_status_doctor_and_a_followed_job_that_waits_for_nodes_tell_the_two_apart(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    capsys: pytest.CaptureFixture[str],
    events: list[dict[str, Any]],
    words: str,
) -> None:
    ray.kubectl_knows(pods=[POD, POD], events=events)
    monkeypatch.setattr(follow, "_SILENCE_SECONDS", 0)
    # What the driver prints while it waits, as its log has it.
    monkeypatch.setenv(progress.FORM_VARIABLE, "json")
    progress.note(f"{WAITING}2 nodes with 8 GPU: 0 of them up; waited 12 of at most 600 s")
    ray.lines = [capsys.readouterr().out.strip()] * 8
    monkeypatch.delenv(progress.FORM_VARIABLE)

    assert f"2 gpu pods without a node: {words}" in cli("submit", "--", "true").err
    assert f"2 gpu pods without a node: {words}" in cli("status").out
    found = doctors_word(monkeypatch, capsys)
    assert found["outcome"] == ("fail" if words == NEVER else "warn") and words in found["found"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pod", "events", "code", "words"),
    [
        ({}, [refused(NO_FIT)], 3, "No wait helps"),
        ({}, [failed("GCE stock-out")], 4, "Wait longer with --start-timeout"),
        (
            {
                "spec": {"nodeName": "node-1"},
                "status": {
                    "phase": "Pending",
                    "containerStatuses": [
                        {"state": {"running": {}}},
                        {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image: x"}}},
                    ],
                },
            },
            [],
            4,
            "1 Pending (ErrImagePull no such image: x)",
        ),
    ],
)
def test_a_cluster_that_did_not_come_up_says_what_its_pods_waited_for_and_whether_to_wait_longer(
    ray: FakeRay, cli: CommandLine, pod: dict[str, Any], events: list[dict[str, Any]], code: int, words: str
) -> None:
    ray.kubectl_knows(stuck=True, pods=[POD | pod], events=events)
    said = cli("submit", "--ray-job", "--", "true", code=code).err
    assert words in said and ("--start-timeout" in said) == (code == 4)
    assert ray.ray_jobs() == []


def test_an_autoscaler_that_has_ended_is_said_by_status_and_doctor(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"name": "autoscaler", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    running = {"name": "ray-head", "state": {"running": {}}}
    head = {"metadata": {"name": "oasis-head", "uid": "2"}, "spec": {"nodeName": "node-1"}}
    for containers, told in (([running, ended], True), ([running, {**ended, **running}], False)):
        ray.kubectl_knows(pods=[head | {"status": {"phase": "Running", "containerStatuses": containers}}])
        assert ("autoscaler has ended in oasis-head" in cli("status").out) is told
        assert doctors_word(monkeypatch, capsys)["outcome"] == ("fail" if told else "ok")


def test_the_head_says_whether_the_control_plane_answers_and_workers_have_no_way_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        head = Subject(environment=OUTPUTS, variables={**pod, "RAY_NODE_TYPE_NAME": "headgroup"}, gpus=0)
        assert f"127.0.0.1:{port}" in cluster.control_plane(head)
    with pytest.raises(PlaceError, match="NetworkPolicy") as refusal:
        cluster.control_plane(head)
    assert str(port) in refusal.value.problem
    with pytest.raises(NotHere, match="not on the head"):
        cluster.control_plane(Subject(environment=OUTPUTS, variables={**pod, "RAY_NODE_TYPE_NAME": "gpu"}, gpus=8))
