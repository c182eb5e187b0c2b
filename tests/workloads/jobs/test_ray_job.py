"""A stand-alone RayJob from a laptop: made, followed by its own cluster's Jobs API, and removed whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import fake_ray, stub_kubectl
from tests.support.fake_ray import TOKEN, FakeRay, press_ctrl_c_once
from tests.support.stub_kubectl import CLUSTER, OUTPUTS
from workloads import __main__ as command_line
from workloads.errors import PlaceError
from workloads.jobs import follow, ray_job

pytestmark = pytest.mark.thorough


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """The cluster of any RayJob, behind a port-forward; a kubectl that plays KubeRay."""
    monkeypatch.setattr(ray_job, "_POLL_SECONDS", 0.02)
    with fake_ray.standing(tmp_path, monkeypatch) as found:
        yield found


def test_the_rayjob_is_the_stack_s_own_cluster_with_an_end(
    ray: FakeRay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.exit_code = 42
    assert command_line.main(["submit", "--ray-job", "--start-timeout", "60", "--", "Python3", "hello world.py"]) == 42
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("line")] == ray.lines
    [job] = stub_kubectl.ray_jobs(tmp_path)
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
    assert not any(Path(f"/proc/{pid}").exists() for pid in stub_kubectl.forwards(tmp_path))


def test_a_cluster_that_does_not_come_up_in_time_is_no_capacity_and_leaves_nothing(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, OUTPUTS, TOKEN, ray.port, stuck=True))
    assert command_line.main(["submit", "--ray-job", "--", "true"]) == 4
    assert "was not up within" in capsys.readouterr().err
    assert stub_kubectl.ray_jobs(tmp_path) == [] and not ray.submitted


@pytest.mark.parametrize("moment", ["find", "begin"])
def test_ctrl_c_and_failures_before_the_job_has_begun_leave_nothing(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_job if moment == "find" else ray_job.OwnCluster, moment, press)
    assert command_line.main(["submit", "--ray-job", "--", "true"]) == 130
    assert stub_kubectl.ray_jobs(tmp_path) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in stub_kubectl.forwards(tmp_path))


def test_ctrl_c_stops_the_job_and_removes_its_cluster(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_ctrl_c_once(monkeypatch)
    assert command_line.main(["submit", "--ray-job", "--", "sleep", "100"]) == 130
    assert ray.stopped
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in stub_kubectl.ray_jobs(tmp_path)] == [0]


def test_a_detached_rayjob_is_listed_shown_attached_to_and_stopped_by_its_id(
    ray: FakeRay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["submit", "--ray-job", "--detach", "--", "sleep", "100"]) == 0
    name = capsys.readouterr().out.strip()
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in stub_kubectl.ray_jobs(tmp_path)] == [600]
    assert command_line.main(["jobs", "list"]) == 0
    listed = capsys.readouterr().out
    assert f"{name}-abcde" in listed and "sleep 100" in listed and "on the stack's cluster" in listed
    assert command_line.main(["jobs", "logs", "last"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "half a li"  # so far
    assert command_line.main(["jobs", "attach", name]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("line")] == ray.lines
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in stub_kubectl.ray_jobs(tmp_path)] == [0]


@pytest.mark.parametrize("alone", [[], ["--ray-job"]])
def test_a_log_that_went_with_its_node_is_told_of(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], alone: list[str]
) -> None:
    assert command_line.main(["submit", *alone, "--detach", "--", "true"]) == 0
    name = capsys.readouterr().out.strip()
    ray.gone = "10.0.0.9"
    assert command_line.main(["jobs", "logs", name]) == 0
    assert f"the output of job {name} is not shown: node 10.0.0.9, which ran it, no longer" in capsys.readouterr().err


def test_stopping_a_rayjob_stops_its_job_and_one_without_a_job_is_removed(
    ray: FakeRay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["submit", "--ray-job", "--detach", "--", "sleep", "100"]) == 0
    name = capsys.readouterr().out.strip()
    assert command_line.main(["jobs", "stop", name]) == 0
    assert ray.stopped and "stopped" in capsys.readouterr().out
    [job] = stub_kubectl.ray_jobs(tmp_path)
    del job["spec"]["jobId"]
    job["status"] = {"jobDeploymentStatus": "Initializing"}
    (tmp_path / "rayjobs" / f"{name}.json").write_text(json.dumps(job))
    assert command_line.main(["jobs", "stop", name]) == 0
    assert stub_kubectl.ray_jobs(tmp_path) == []


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
    ray: FakeRay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: dict[str, str],
    code: int,
) -> None:
    def lose(follower: follow.Follower) -> None:
        [job] = stub_kubectl.ray_jobs(tmp_path)
        job["status"] |= status
        (tmp_path / "rayjobs" / f"{job['metadata']['name']}.json").write_text(json.dumps(job))
        raise PlaceError("out of reach", "")

    monkeypatch.setattr(follow.Follower, "run", lose)
    assert command_line.main(["submit", "--ray-job", "--", "true"]) == code
    assert "ended out of sight" in capsys.readouterr().err
    name = stub_kubectl.ray_jobs(tmp_path)[0]["metadata"]["name"]
    assert command_line.main(["jobs", "attach", name]) == code
    attached = capsys.readouterr()
    assert status.get("message", "") in attached.out
    assert ("ended with exit code 42, its command's own" in attached.err) == (code == 42)


def break_kubectl(folder: Path, word: str, answer: str) -> None:
    """Have the stub refuse every command with a word, and do the others as before."""
    stub = (folder / "kubectl").read_text()
    refusal = f'case "$*" in *" {word} "*) echo "{answer}" >&2; exit 1;; esac'
    (folder / "kubectl").write_text(stub.replace("#!/bin/sh\n", f"#!/bin/sh\n{refusal}\n"))


@pytest.mark.parametrize("moment", ["run", "begin"])
def test_a_job_that_may_run_is_not_deleted_because_kubectl_does_not_answer(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    def lose(found: follow.Follower | ray_job.OwnCluster) -> None:
        if isinstance(found, ray_job.OwnCluster):
            ray_job.patch(found.parent, found.name, {"jobId": found.name})  # KubeRay has it, and the answer is lost
        break_kubectl(tmp_path, "get", "Unable to connect to the server")
        raise PlaceError("out of reach", "")

    monkeypatch.setattr(follow.Follower if moment == "run" else ray_job.OwnCluster, moment, lose)
    assert command_line.main(["submit", "--ray-job", "--", "true"]) == 8
    said = capsys.readouterr().err
    assert "Unable to connect to the server" in said
    [job] = stub_kubectl.ray_jobs(tmp_path)
    assert job["spec"]["jobId"] == job["metadata"]["name"]
    assert ("since its job may run" in said) == (moment == "begin")


def test_without_the_right_to_make_rayjobs_the_refusal_is_shown(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_kubectl(tmp_path, "create", "Error from server (Forbidden): rayjobs")
    assert command_line.main(["submit", "--ray-job", "--", "true"]) == 7
    assert "(Forbidden): rayjobs" in capsys.readouterr().err


def test_a_stack_without_a_raycluster_is_told_so(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = replace(OUTPUTS, ray_cluster_name="oasis")
    path = stub_kubectl.install(tmp_path, at, TOKEN, ray.port)
    break_kubectl(tmp_path, "raycluster", "Error from server (NotFound): rayclusters")
    monkeypatch.setenv("PATH", path)
    assert command_line.main(["submit", "--ray-job", "--", "true"]) == 8
    assert "NotFound" in capsys.readouterr().err
