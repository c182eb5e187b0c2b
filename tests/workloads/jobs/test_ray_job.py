"""A stand-alone RayJob from a laptop: made, followed by its own cluster's Jobs API, and removed whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.fake_ray import FakeRay, lines_of_job, press_ctrl_c, press_ctrl_c_once
from tests.support.stub_kubectl import CLUSTER
from workloads.cluster.stack import DeployedStack
from workloads.errors import PlaceError
from workloads.jobs import follow, ray_job, submit

pytestmark = pytest.mark.thorough


def test_the_rayjob_is_the_stack_s_own_cluster_with_an_end(ray: FakeRay, cli: CommandLine) -> None:
    ray.exit_code = 42
    said = cli("submit", "--ray-job", "--start-timeout", "60", "--", "Python3", "hello world.py", code=42)
    assert lines_of_job(said.out) == ray.lines
    [job] = ray.ray_jobs()
    name, spec = job["metadata"]["name"], job["spec"]
    assert name.startswith("python3-") and len(name) <= ray_job.NAME_LENGTH
    assert job["metadata"]["namespace"] == "ray"
    assert spec["shutdownAfterJobFinishes"] and spec["preRunningDeadlineSeconds"] == 60
    assert spec["jobId"] == name == ray.submitted["submission_id"]
    assert spec["ttlSecondsAfterFinished"] == 0  # so the cluster went at once
    cluster = spec["rayClusterSpec"]
    assert cluster["headGroupSpec"] == CLUSTER["headGroupSpec"] and cluster["authOptions"] == {"mode": "token"}
    assert "upgradeStrategy" not in cluster
    assert [group["groupName"] for group in cluster["workerGroupSpecs"]] == ["cpu", "gpu"]
    assert not any({"replicas", "scaleStrategy"} & set(group) for group in cluster["workerGroupSpecs"])


def test_a_cluster_that_does_not_come_up_in_time_is_no_capacity_and_leaves_nothing(
    ray: FakeRay, cli: CommandLine
) -> None:
    ray.kubectl_knows(stuck=True)
    assert "was not up within" in cli("submit", "--ray-job", "--", "true", code=4).err
    assert ray.ray_jobs() == [] and not ray.submitted


def test_a_rayjob_that_kuberay_gives_up_is_a_failure_at_once_and_leaves_nothing(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = ray_job.find

    def given_up(stack: DeployedStack, name: str) -> ray_job.Status | None:
        [job] = ray.ray_jobs()
        over = {"jobDeploymentStatus": "Failed", "reason": "ValidationFailed", "message": "the spec is not valid"}
        ray.replace_ray_job({**job, "status": over})
        return find(stack, name)

    monkeypatch.setattr(ray_job, "find", given_up)
    monkeypatch.setattr(ray_job, "_GRACE_SECONDS", 0)
    said = cli("submit", "--ray-job", "--start-timeout", "5", "--", "true", code=5).err
    assert "failed: ValidationFailed the spec is not valid" in said and "describe rayjob true-" in said
    assert ray.ray_jobs() == []


@pytest.mark.parametrize("moment", ["find", "begin"])
def test_ctrl_c_and_failures_before_the_job_has_begun_leave_nothing(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(ray_job if moment == "find" else ray_job.OwnCluster, moment, press_ctrl_c)
    cli("submit", "--ray-job", "--", "true", code=130)
    assert ray.ray_jobs() == []


@pytest.mark.parametrize("moment", ["begun", "told", "detached", "followed"])
def test_ctrl_c_stops_the_job_and_removes_its_cluster(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def begin(own: ray_job.OwnCluster) -> None:
        ray_job.patch(own.parent, own.name, {"jobId": own.name})  # KubeRay has it, and its answer is not here yet
        raise KeyboardInterrupt

    def tell(text: str) -> None:
        if "submitted to its own cluster" in text:
            raise KeyboardInterrupt

    if moment == "begun":
        monkeypatch.setattr(ray_job.OwnCluster, "begin", begin)
    elif moment == "told":
        monkeypatch.setattr(submit, "tell", tell)
    elif moment == "detached":
        monkeypatch.setattr(submit, "detached", press_ctrl_c)
    else:
        press_ctrl_c_once(monkeypatch)
    detach = ["--detach"] if moment == "detached" else []
    said = cli("submit", "--ray-job", *detach, "--", "sleep", "100", code=130).err
    assert ray.stopped and "it has stopped" in said and "-abcde is removed" in said
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in ray.ray_jobs()] == [0]


def test_a_detached_rayjob_is_listed_shown_attached_to_and_stopped_by_its_id(ray: FakeRay, cli: CommandLine) -> None:
    name = cli("submit", "--ray-job", "--detach", "--", "sleep", "100").out.strip()
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in ray.ray_jobs()] == [600]
    listed = cli("jobs", "list").out
    assert f"{name}-abcde" in listed and "sleep 100" in listed and "on the stack's cluster" in listed
    assert cli("jobs", "logs", "last").out.splitlines()[-1] == "half a li"  # so far
    assert lines_of_job(cli("jobs", "attach", name).out) == ray.lines
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in ray.ray_jobs()] == [0]


@pytest.mark.parametrize("alone", [[], ["--ray-job"]])
def test_a_log_that_went_with_its_node_is_told_of(ray: FakeRay, cli: CommandLine, alone: list[str]) -> None:
    name = cli("submit", *alone, "--detach", "--", "true").out.strip()
    ray.gone = "10.0.0.9"
    said = cli("jobs", "logs", name).err
    assert f"the output of job {name} is not shown: node 10.0.0.9, which ran it, no longer" in said


def test_stopping_a_rayjob_stops_its_job_and_one_without_a_job_is_removed(ray: FakeRay, cli: CommandLine) -> None:
    name = cli("submit", "--ray-job", "--detach", "--", "sleep", "100").out.strip()
    said = cli("jobs", "stop", "last", code=2).err
    assert f"now {name}" in said and f"jobs stop {name}" in said and not ray.stopped
    assert "stopped" in cli("jobs", "stop", name).out
    assert ray.stopped
    [job] = ray.ray_jobs()
    del job["spec"]["jobId"]
    job["status"] = {"jobDeploymentStatus": "Initializing"}
    ray.replace_ray_job(job)
    cli("jobs", "stop", name)
    assert ray.ray_jobs() == []


def test_stopping_a_rayjob_ends_without_a_checkpoint_only_what_its_ray_does_not_know(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cli("submit", "--ray-job", "--detach", "--", "sleep", "100").out.strip()
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", 0.5)
    ray.failing[f"/api/jobs/{name}"] = 403
    assert "Ray refuses the token" in cli("jobs", "stop", name, code=7).err
    ray.failing[f"/api/jobs/{name}"] = 503
    said = cli("jobs", "stop", name, code=8).err
    assert (
        "out of reach" in said and f"without a last checkpoint: `kubectl --namespace ray delete rayjob {name}" in said
    )
    assert len(ray.ray_jobs()) == 1
    ray.failing[f"/api/jobs/{name}"] = 404
    assert "Ray knows no job" in cli("jobs", "stop", name).err
    assert ray.ray_jobs() == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}, 0),
        ({"jobStatus": "STOPPED", "jobDeploymentStatus": "Complete"}, 130),
        (
            {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "message": "failed with exit code 42, last logs"},
            42,
        ),
        ({"jobDeploymentStatus": "Failed", "message": "no such image"}, 5),
    ],
)
def test_a_job_that_ended_while_its_cluster_was_out_of_reach_has_the_exit_code_that_kuberay_saw(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, status: dict[str, str], code: int
) -> None:
    def lose(follower: follow.Follower) -> None:
        [job] = ray.ray_jobs()
        job["status"] |= status
        ray.replace_ray_job(job)
        raise PlaceError("out of reach", "")

    monkeypatch.setattr(follow.Follower, "run", lose)
    assert "ended unobserved" in cli("submit", "--ray-job", "--", "true", code=code).err
    name = ray.ray_jobs()[0]["metadata"]["name"]
    attached = cli("jobs", "attach", name, code=code)
    assert status.get("message", "") in attached.out
    assert ("ended with exit code 42, its command's own" in attached.err) == (code == 42)


@pytest.mark.parametrize("moment", ["run", "begin"])
def test_a_job_that_may_run_is_not_deleted_because_kubectl_does_not_answer(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, moment: str
) -> None:
    def lose(found: follow.Follower | ray_job.OwnCluster) -> None:
        if isinstance(found, ray_job.OwnCluster):
            ray_job.patch(found.parent, found.name, {"jobId": found.name})  # KubeRay has it, and the answer is lost
        ray.kubectl_refuses('*" get "*', "Unable to connect to the server")
        raise PlaceError("out of reach", "")

    monkeypatch.setattr(follow.Follower if moment == "run" else ray_job.OwnCluster, moment, lose)
    said = cli("submit", "--ray-job", "--", "true", code=8).err
    assert "Unable to connect to the server" in said
    [job] = ray.ray_jobs()
    assert job["spec"]["jobId"] == job["metadata"]["name"]
    assert ("since its job may run" in said) == (moment == "begin")


def test_commands_that_are_told_about_a_rayjob_name_its_namespace_and_context(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    submit = ("submit", "--context", "far away", "--ray-job", "--", "true")
    monkeypatch.setattr(ray_job, "_until_gone", lambda stack: False)
    said = cli(*submit).err
    name = ray.ray_jobs()[0]["metadata"]["name"]
    assert f"still there; `kubectl --context 'far away' --namespace ray describe rayjob {name}` may say" in said
    ray.kubectl_knows(stuck=True)
    ray.kubectl_refuses('*" delete "*', "Unable to connect to the server")
    said = cli(*submit, code=4).err
    assert "Delete it with `kubectl --context 'far away' --namespace ray delete rayjob true-" in said


def test_whatever_context_is_made_the_current_one_meanwhile_that_of_the_beginning_is_used_throughout(
    ray: FakeRay, cli: CommandLine
) -> None:
    ray.kubectl_knows(context="near")
    assert "cluster oasis of project test-project in us-central1-a" in cli("submit", "--ray-job", "--", "true").err
    first, *calls = [json.loads(line) for line in (ray.folder / "calls").read_text().splitlines()]
    assert first == ["config", "current-context"] and len(calls) > 5
    assert all(call[:2] == ["--context", "near"] for call in calls)


def test_a_second_ctrl_c_while_a_rayjob_is_removed_is_answered_with_how_to_make_sure(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(stack: DeployedStack, *words: str, given: str | None = None, ask: Any = DeployedStack.ask) -> str:
        if words[0] == "delete":
            raise KeyboardInterrupt
        return ask(stack, *words, given=given)

    monkeypatch.setattr(ray_job, "find", press_ctrl_c)
    monkeypatch.setattr(DeployedStack, "ask", ask)
    said = cli("submit", "--context", "far", "--ray-job", "--", "true", code=130).err
    assert "was not seen; `kubectl --context far --namespace ray delete rayjob true-" in said


def test_a_stack_without_a_raycluster_is_told_so(ray: FakeRay, cli: CommandLine) -> None:
    ray.kubectl_refuses('*" raycluster "*', "Error from server (NotFound): rayclusters")
    assert "NotFound" in cli("submit", "--ray-job", "--", "true", code=8).err
