"""A job in Kueue's queue: what is handed in, what is refused before, why it waits, and what becomes of it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import fs
from ray._private.runtime_env.packaging import unzip_package

from tests.support import stub_kubectl
from tests.support.command_line import CommandLine
from tests.support.fake_ray import FakeRay, lines_of_job, press_ctrl_c, press_ctrl_c_once
from tests.support.stub_kubectl import CLUSTER, OUTPUTS
from workloads.cluster.stack import CHECKOUT, DeployedStack
from workloads.environment import DRAIN_SECONDS, DRAIN_VARIABLE, GRACE_SECONDS
from workloads.errors import PlaceError
from workloads.jobs import dashboard, follow, queue, ray_job, submit
from workloads.storage import folders

FULL = (
    "couldn't assign flavors to pod set gpu: "
    "insufficient unused quota for nvidia.com/gpu in flavor queued, 8 more needed"
)
RETRIED = "Evicted due to AdmissionCheck in Retry state: queued-provisioning: stock-out"
TOO_OFTEN = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"
ETA = "Waiting for resources. ETA: 2026-11-24T12:00:00Z"


def condition(kind: str, status: bool, message: str = "", reason: str = "") -> dict[str, Any]:
    found = {"type": kind, "status": str(status), "message": message, "reason": reason}
    return {key: value for key, value in found.items() if value}


def check(state: str, message: str = "") -> dict[str, Any]:
    return {"name": "queued", "state": state, "message": message}


PENDING = {"conditions": [condition("QuotaReserved", False, FULL, "Pending")]}
ASKED = {"conditions": [condition("QuotaReserved", True)], "admissionChecks": [check("Pending", ETA)]}
ADMITTED = {
    "conditions": [condition("QuotaReserved", True), condition("Admitted", True)],
    "admissionChecks": [check("Ready")],
}
NOT_GIVEN = {  # as Kueue 0.19.2 leaves it until it asks again
    "conditions": [
        condition("QuotaReserved", False, RETRIED, "Pending"),
        condition("Evicted", True, RETRIED, "AdmissionCheck"),
    ],
    "admissionChecks": [check("Pending", "Reset to Pending after eviction. Previously: Retry")],
}
REVOKED = {"active": False, "conditions": [condition("Evicted", True, "the maximum run duration was exceeded")]}
EVICTED = {"conditions": [condition("QuotaReserved", False, FULL), condition("Evicted", True, "a node was repaired")]}


def other(name: str, created: str, nodes: int, *conditions: dict[str, Any], where: str = "gpu") -> dict[str, Any]:
    """Another job's Workload: `nodes` of GPUs, and a head without."""
    groups = [(1, {"cpu": "4"}), (nodes, {"nvidia.com/gpu": "8"})]
    return {
        "metadata": {
            "name": f"rayjob-{name}",
            "creationTimestamp": f"2026-11-24T{created}:00Z",
            "ownerReferences": [{"name": name, "uid": name}],
        },
        "spec": {
            "queueName": where,
            "podSets": [
                {"count": count, "template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}}
                for count, requests in groups
            ],
        },
        "status": {"conditions": list(conditions)},
    }


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs bucket, as a folder."""
    monkeypatch.setattr(queue, "_POLL_SECONDS", 0.02)
    (tmp_path / "buckets" / "test-runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "buckets")
    monkeypatch.setattr(folders, "_cloud_storage", fs.LocalFileSystem)
    return tmp_path / "buckets" / "test-runs"


@pytest.fixture
def ray(ray: FakeRay, bucket: Path) -> FakeRay:
    """The cluster of any RayJob, which KubeRay has submitted the job to, and a queue in which it is the job's turn."""
    ray.kubectl_knows(steps=[PENDING, ASKED, ADMITTED])
    return ray


def handed_in(ray: FakeRay, cli: CommandLine, *words: str) -> dict[str, Any]:
    """The RayJob of a submission that is left in the queue."""
    cli("submit", "--queue", "--detach", *words)
    [job] = ray.ray_jobs()
    return job


def archives(ray: FakeRay) -> list[Path]:
    """Working directories in the runs bucket."""
    return sorted((ray.folder / "buckets").rglob("*.zip"))


@pytest.mark.thorough
def test_a_queued_job_is_followed_from_the_queue_to_its_end_and_leaves_nothing(ray: FakeRay, cli: CommandLine) -> None:
    ray.exit_code = 42
    said = cli("submit", "--queue", "--nodes", "2", "--", "doctor", code=42)
    assert lines_of_job(said.out) == ray.lines
    told = said.err
    for words in (
        "its 2 nodes cost 84.80 USD an hour at list price, from arrival to the job's end, and at most 2,035 USD",
        "is in the queue gpu for 2 nodes; Ctrl-C takes it out",
        "it waits for its turn: 8 more GPUs must come free",
        f"Google is asked for 2 nodes at once: {ETA}",
        "its 2 nodes are there",
        "ended with exit code 42",
    ):
        assert words in told
        told = told[told.index(words) :]
    assert not ray.submitted  # KubeRay does that
    [job] = ray.ray_jobs()
    assert job["spec"]["ttlSecondsAfterFinished"] == 0  # so the cluster went at once
    assert archives(ray) == []


def test_the_rayjob_is_of_a_fixed_size_with_one_set_of_gpu_pods_that_may_go_to_queued_nodes(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = json.loads(json.dumps(CLUSTER))
    cluster["autoscalerOptions"] = {"version": "v2"}
    pod = cluster["workerGroupSpecs"][1]["template"]["spec"]
    pod["nodeSelector"] = {"cloud.google.com/compute-class": "gpu", "own": "label"}
    pod["tolerations"] = [{"key": key, "operator": "Exists"} for key in ("cloud.google.com/compute-class", "nvidia")]
    pod["terminationGracePeriodSeconds"] = 15
    pod["initContainers"] = [{"name": "gib", "resources": {"limits": {"cpu": "1"}}}]
    pod["containers"][0]["env"] = [{"name": "A", "value": "b"}, {"name": "OASIS_MAX_RUN_SECONDS", "value": "604800"}]
    monkeypatch.setattr(stub_kubectl, "CLUSTER", cluster)
    ray.kubectl_knows(steps=[PENDING])
    job = handed_in(ray, cli, "--nodes", "2", "--num-cpus", "3", "--resources", '{"GPU": 1}', "--", "Python3", "a b")
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpu"}
    spec, made = job["spec"], job["spec"]["rayClusterSpec"]
    assert spec["suspend"] and spec["shutdownAfterJobFinishes"] and "preRunningDeadlineSeconds" not in spec
    assert (spec["jobId"], spec["entrypoint"]) == (job["metadata"]["name"], "Python3 'a b'")
    assert spec["metadata"] == {"oasis.command": "python3"}
    assert (spec["entrypointNumCpus"], spec["entrypointNumGpus"]) == (3, 1) and "entrypointResources" not in spec
    assert not {"enableInTreeAutoscaling", "autoscalerOptions", "upgradeStrategy"} & set(made)
    [group] = made["workerGroupSpecs"]
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]
    assert "scaleStrategy" not in group
    worker = group["template"]["spec"]
    assert worker["nodeSelector"] == {"own": "label"}
    assert [one["key"] for one in worker["tolerations"]] == ["nvidia", "cloud.google.com/gke-queued"]
    environment = {one["name"]: one["value"] for one in worker["containers"][0]["env"]}
    # Of queued nodes and of this job, not of the ladder's; and no node of it is Spot.
    own = {"OASIS_MAX_RUN_SECONDS": "86400", "OASIS_GPU_MAX_NODES": "2", DRAIN_VARIABLE: str(DRAIN_SECONDS)}
    assert environment == {"A": "b", **own}
    assert worker["terminationGracePeriodSeconds"] == GRACE_SECONDS
    head = made["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "OASIS_GPU_MAX_NODES", "value": "2"} in head
    for container in (*worker["containers"], *worker["initContainers"]):
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_working_directory_waits_in_the_runs_bucket_as_ray_fetches_it(
    ray: FakeRay, tmp_path: Path, bucket: Path, cli: CommandLine
) -> None:
    project = tmp_path / "project"
    for name in ("job.py", "src/a.py", ".git/HEAD", "a.ckpt", "ignored/c.txt", "own.bin"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / ".gitignore").write_text("ignored\n")
    (tmp_path / "env.yaml").write_text("env_vars: {A: b}\nexcludes: ['*.bin']\n")
    words = ["--working-dir", str(project), "--runtime-env", str(tmp_path / "env.yaml"), "--", "python", "job.py"]
    job = handed_in(ray, cli, *words)
    name = job["metadata"]["name"]
    environment = yaml.safe_load(job["spec"]["runtimeEnvYAML"])
    assert environment["env_vars"]["A"] == "b"
    [archive] = archives(ray)
    assert environment["working_dir"] == f"gs://test-runs/{archive.relative_to(bucket)}"
    unpacked = tmp_path / "unpacked"
    unzip_package(str(archive), str(unpacked), remove_top_level_directory=True, unlink_zip=False)
    found = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    assert found == {"job.py", "src/a.py", ".gitignore"}
    cli("jobs", "stop", name)
    assert ray.ray_jobs() == [] and archives(ray) == []


def test_a_command_of_ours_takes_the_package_along(ray: FakeRay, cli: CommandLine) -> None:
    job = handed_in(ray, cli, "--nodes", "2", "--", "bench", "--nodes=2")
    assert job["spec"]["entrypoint"] == "python -m workloads bench --nodes=2"
    assert json.loads(job["spec"]["entrypointResources"]) == {"driver": 0.01}
    variables = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert variables["OASIS_SUBMITTED_WITH"] == "--queue --nodes 2"
    [archive] = archives(ray)
    assert "working_dir/workloads/jobs/submit.py" in zipfile.ZipFile(io.BytesIO(archive.read_bytes())).namelist()


@pytest.mark.parametrize(
    ("command", "entrypoint"),
    [
        ("train --workers 8", r"train --run train-\d{8}-\d{6}-[0-9a-f]{4} --workers 8"),
        ("train --run=mine", "train --run=mine"),
        ("train --ru mine", r"train --run \S+ --ru mine"),  # argparse's short form, which is read last
    ],
)
def test_a_training_has_the_same_run_however_often_kuberay_submits_it(
    ray: FakeRay, cli: CommandLine, command: str, entrypoint: str
) -> None:
    job = handed_in(ray, cli, "--", *command.split())
    assert re.fullmatch(f"python -m workloads {entrypoint}", job["spec"]["entrypoint"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--queue", "--ray-job", "--", "true"], 2, "--queue and --ray-job were both given"),
        (["--nodes", "2", "--", "true"], 2, "--nodes is 2 without --queue"),
        (["--queue", "--nodes", "0", "--", "true"], 2, "--nodes is 0; it must be at least 1"),
        (["--queue", "--nodes", "3", "--", "true"], 3, "--nodes is 3; all jobs of the queue gpu can have 2 nodes"),
        (["--queue", "--memory", "1e9", "--", "true"], 2, "Memory was asked for"),
        (["--queue", "--nodes", "2", "--", "train", "--workers", "8:16"], 2, "--workers 16"),
        (["--queue", "--", "train", "--workers=9"], 3, "1 node with 8 GPUs"),
        (["--queue", "--", "bench"], 3, "bench measures 2 nodes"),
        (["--queue", "--num-gpus", "9", "--", "true"], 3, "worker group gpu: 200 CPU, 8 GPU"),
        (["--queue", "--runtime-env", "ENV", "--", "true"], 2, "Ray does not accept the runtime environment"),
        (["--queue", "--runtime-env", "LOCAL", "--", "true"], 2, "names a.zip on this machine"),
    ],
)
def test_what_could_not_run_is_refused_before_it_is_in_the_queue(
    ray: FakeRay, tmp_path: Path, cli: CommandLine, arguments: list[str], code: int, said: str
) -> None:
    for name, text in (("ENV", "env_vars: {EPOCHS: 3}"), ("LOCAL", "working_dir: a.zip")):
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / word) if word in ("ENV", "LOCAL") else word for word in arguments]
    assert said in cli("submit", *given, code=code).err
    assert not ray.ray_jobs() and archives(ray) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train", "2 nodes with 16 GPUs; train uses the GPUs of one node unless it is given --workers 16"),
        ("train --workers 8", "2 nodes with 16 GPUs, of which train uses 8 unless it is given --workers 16"),
        ("train --workers 9", ""),
        ("bench --nodes 1", "the job has 2 nodes; bench measures 1 unless it is given --nodes 2"),
        ("bench", ""),
    ],
)
def test_nodes_that_a_job_would_have_and_not_use_are_told_of(
    ray: FakeRay, cli: CommandLine, command: str, said: str
) -> None:
    told = cli("submit", "--queue", "--nodes", "2", "--detach", "--", *command.split()).err
    assert said in told and (said != "") == ("unless it is given" in told)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_stack_without_a_queue_says_what_makes_one(ray: FakeRay, cli: CommandLine, dry: list[str]) -> None:
    ray.kubectl_knows(replace(OUTPUTS, gpu_queue="", gpu_queue_nodes=0))
    said = cli("submit", "--queue", *dry, "--", "true", code=2).err
    assert "mode queued to oasis:gpu.capacity" in said and "submit --ray-job" in said


def test_a_dry_run_says_which_queue_and_how_many_nodes(ray: FakeRay, cli: CommandLine) -> None:
    words = ["submit", "--queue", "--nodes", "2", "--dry-run"]
    settings = json.loads(cli(*words, "--json", "--", "true").out)["settings"]
    assert "2 GPU nodes from the queue gpu" in settings["cluster"]["value"]
    assert "2 GPU nodes from the queue gpu" in cli(*words, "--", "train", "--workers", "16").out


RUNNING = other("first", "09:00", 2, condition("QuotaReserved", True), condition("Admitted", True))


@pytest.mark.parametrize(
    ("step", "others", "words"),
    [
        (PENDING, [RUNNING], "behind first, which has 2 nodes: 8 more GPUs must come free"),
        (PENDING, [other("new", "09:00", 1, condition("QuotaReserved", True))], "behind new, which is getting 1 node"),
        (PENDING, [other("before", "09:59", 1)], "behind before, which waits for 1 node"),
        # Who came later, waits elsewhere or is done is not ahead.
        (PENDING, [other("later", "10:01", 1)], "it waits for its turn: 8"),
        (PENDING, [other("elsewhere", "09:00", 1, where="tpu")], "it waits for its turn: 8"),
        (PENDING, [other("done", "09:00", 1, condition("Finished", True))], "it waits for its turn: 8"),
        (PENDING, [other(f"job{number}", "09:00", 1) for number in range(5)], "waits for 1 node and 2 more"),
        (ASKED, [RUNNING], f"it is its turn: Google is asked for 1 node at once: {ETA}"),
        (
            ASKED | {"admissionChecks": [check("Pending")]},
            [],
            "Google is asked for 1 node at once, and has not answered yet",
        ),
        (NOT_GIVEN, [RUNNING], "Google did not give 1 node, and is asked again: queued-provisioning: stock-out"),
        (EVICTED, [RUNNING], "put back into the queue (a node was repaired); it waits for its turn behind first"),
        ({"conditions": [condition("QuotaReserved", False, "ClusterQueue gpu is inactive")]}, [], "gpu is inactive"),
        ({}, [], "it waits for its turn"),
    ],
)
def test_why_a_job_waits_is_said_in_words(
    ray: FakeRay, cli: CommandLine, step: Any, others: list[Any], words: str
) -> None:
    ray.kubectl_knows(steps=[step], others=others)
    name = handed_in(ray, cli, "--", "true")["metadata"]["name"]
    said = cli("jobs", "logs", name).err
    assert f"{name} has not begun: " in said and words in said


def test_a_job_that_kueue_has_not_seen_or_whose_workload_may_not_be_seen_waits_too(
    ray: FakeRay, cli: CommandLine
) -> None:
    ray.kubectl_knows(steps=[])
    name = handed_in(ray, cli, "--", "true")["metadata"]["name"]
    assert "Kueue has not taken it up yet" in cli("jobs", "logs", name).err
    ray.kubectl_refuses("*workloads*", "Error from server (Forbidden): workloads")
    assert "why it waits is not shown to you" in cli("jobs", "logs", name).err


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        (ASKED | {"admissionChecks": [check("Rejected", "no H200 in this zone")]}, 4, "no H200 in this zone"),
        (REVOKED, 4, "could not be had: the maximum run duration was exceeded"),
        ({"active": False, "conditions": [condition("Evicted", True, TOO_OFTEN)]}, 5, "Look at the image"),
        (
            {"conditions": [condition("QuotaReserved", False, "LocalQueue gpu doesn't exist", "Inadmissible")]},
            8,
            "LocalQueue gpu doesn't exist",
        ),
    ],
)
def test_a_job_whose_nodes_will_not_come_is_removed_with_the_reason(
    ray: FakeRay, cli: CommandLine, step: Any, code: int, words: str
) -> None:
    ray.kubectl_knows(steps=[PENDING, step])
    assert words in cli("submit", "--queue", "--", "doctor", code=code).err
    assert ray.ray_jobs() == [] and archives(ray) == []


def test_ctrl_c_in_the_queue_takes_the_job_out_with_its_working_directory(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(queue, "look", press_ctrl_c)
    assert "out of the queue; Ctrl-C again leaves it there" in cli("submit", "--queue", "--", "doctor", code=130).err
    assert ray.ray_jobs() == [] and archives(ray) == []


def test_a_job_that_cannot_be_removed_keeps_its_working_directory_and_is_not_called_stopped(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(queue, "look", press_ctrl_c)
    ray.kubectl_refuses('*" delete "*', "Unable to connect to the server")
    assert "is still there" in cli("submit", "--queue", "--", "doctor", code=130).err
    [job] = ray.ray_jobs()
    assert "Unable to connect" in cli("jobs", "stop", job["metadata"]["name"], code=8).err
    assert len(archives(ray)) == 1


def test_a_second_ctrl_c_leaves_the_job_in_the_queue(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(queue, "look", press_ctrl_c)
    monkeypatch.setattr(ray_job, "remove", press_ctrl_c)
    said = cli("submit", "--queue", "--", "doctor", code=130).err
    [job] = ray.ray_jobs()
    assert f"jobs attach {job['metadata']['name']}" in said
    assert len(archives(ray)) == 1


@pytest.mark.thorough
def test_ctrl_c_while_it_runs_stops_the_job_and_has_its_cluster_removed(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_ctrl_c_once(monkeypatch)
    stop = submit._stop

    def known(args: Any, follower: follow.Follower) -> int:
        ray.submitted["submission_id"] = follower.submission_id  # as KubeRay has submitted it
        return stop(args, follower)

    monkeypatch.setattr(submit, "_stop", known)
    cli("submit", "--queue", "--", "doctor", code=130)
    assert ray.stopped
    assert [job["spec"]["ttlSecondsAfterFinished"] for job in ray.ray_jobs()] == [0]
    assert archives(ray) == []


@pytest.mark.thorough
def test_a_detached_job_is_listed_as_queued_left_by_ctrl_c_and_attached_to_again(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    printed = cli("submit", "--queue", "--detach", "--", "doctor")
    name = ray.ray_jobs()[0]["metadata"]["name"]
    assert printed.out.split() == [name] and f"jobs attach {name}" in printed.err
    [line] = [line for line in cli("jobs", "list").out.splitlines() if line.startswith(name)]
    assert "QUEUED" in line
    with monkeypatch.context() as patched:
        patched.setattr(queue, "look", press_ctrl_c)
        cli("jobs", "attach", name, code=130)
    assert len(archives(ray)) == len(ray.ray_jobs()) == 1
    ray.exit_code = 3
    said = cli("jobs", "attach", name, code=3)
    assert lines_of_job(said.out) == ray.lines
    assert "8 more GPUs must come free" in said.err
    assert archives(ray) == []


def put_back(ray: FakeRay) -> None:
    """Kueue takes the cluster of the RayJob that is there."""
    [job] = ray.ray_jobs()
    job["spec"]["suspend"] = True
    ray.replace_ray_job(job)


def lost(*_: object) -> None:
    raise PlaceError("out of reach", "")


def failed(ray: FakeRay) -> None:
    ray.exit_code = 1


@pytest.mark.thorough
@pytest.mark.parametrize("seen", [lost, failed])
def test_a_job_whose_nodes_are_taken_back_waits_in_the_queue_again_and_is_followed_again(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, seen: Callable[[FakeRay], None]
) -> None:
    ray.kubectl_knows(steps=[ADMITTED, EVICTED, ADMITTED])
    run, times = follow.Follower.run, list[float]()

    def evict_once(follower: follow.Follower) -> Any:
        times.append(time.monotonic())
        if len(times) == 1:
            put_back(ray)
            seen(ray)
        elif seen is failed:
            ray.exit_code, ray._polls = 0, 0
        return run(follower)

    monkeypatch.setattr(follow.Follower, "run", evict_once)
    said = cli("submit", "--queue", "--", "doctor").err
    assert "Kueue took the nodes of job doctor-" in said and "put back into the queue (a node was repaired)" in said
    assert len(times) == 2 and archives(ray) == []


@pytest.mark.thorough
def test_a_job_that_ran_until_its_nodes_end_is_told_how_its_run_goes_on(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    ray.kubectl_knows(steps=[ADMITTED, ADMITTED, REVOKED])
    run = follow.Follower.run

    def revoke(follower: follow.Follower) -> Any:
        put_back(ray)
        lost(ray)
        return run(follower)

    monkeypatch.setattr(follow.Follower, "run", revoke)
    said = cli("submit", "--queue", "--", "doctor", code=4).err
    assert "ran until its nodes were taken from it: the maximum run duration was exceeded" in said
    assert "with the same --run" in said and "begins anew" not in said
    assert ray.ray_jobs() == [] and archives(ray) == []


def test_what_was_kept_for_a_job_goes_with_it_whoever_deleted_it(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    find, asked = ray_job.find, list[str]()

    def until_deleted(stack: Any, name: str) -> Any:
        asked.append(name)
        return find(stack, name) if len(asked) == 1 else None

    monkeypatch.setattr(ray_job, "find", until_deleted)
    assert "was deleted while it was waited for" in cli("submit", "--queue", "--", "doctor", code=5).err
    assert archives(ray) == []


def test_a_job_that_kuberay_has_not_got_submitted_is_stopped_all_the_same(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = handed_in(ray, cli, "--", "doctor")
    name = job["metadata"]["name"]
    known = ray_job.status_of

    def running_unsubmitted(body: dict[str, Any]) -> Any:
        return replace(known(body), suspended=False, phase="Running", job="")

    monkeypatch.setattr(ray_job, "status_of", running_unsubmitted)
    cli("jobs", "stop", name)
    assert ray.ray_jobs() == [] and archives(ray) == []


@pytest.mark.thorough
def test_an_eviction_is_noticed_as_soon_as_the_dashboard_is_gone(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    ray.kubectl_knows(steps=[ADMITTED, EVICTED, ADMITTED])
    monkeypatch.setattr(dashboard, "READY_SECONDS", 0.5)
    details, asked = follow.Jobs.details, list[str]()

    def evict(jobs: follow.Jobs, name: str) -> Any:
        asked.append(name)
        ray.broken = 1.0 if len(asked) == 1 else 0.0
        if len(asked) == 1:
            put_back(ray)
        return details(jobs, name)

    monkeypatch.setattr(follow.Jobs, "details", evict)
    began = time.monotonic()
    assert "Kueue took the nodes of job doctor-" in cli("submit", "--queue", "--", "doctor").err
    assert time.monotonic() - began < follow.PATIENCE_SECONDS / 3


def test_kubernetes_out_of_reach_leaves_the_job_in_the_queue_and_says_how_to_go_on(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(queue, "look", lost)
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", 0.1)
    said = cli("submit", "--queue", "--", "doctor", code=8).err
    [job] = ray.ray_jobs()
    assert "stays in the queue" in said and f"jobs attach {job['metadata']['name']}" in said


@pytest.mark.thorough
@pytest.mark.parametrize("words", ["submit -- true", "submit --queue -- true", "jobs list"])
def test_a_full_disk_behind_the_output_is_an_error_in_words_and_leaves_the_job_with_a_way_back(
    ray: FakeRay, words: str
) -> None:
    ray.kubectl_knows(steps=[ADMITTED])
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "workloads", *words.split()]
        done = subprocess.run(command, cwd=CHECKOUT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (8, False), done.stderr
    assert "error: the output cannot be written: No space left on device." in done.stderr
    assert ("was left running; follow it with `python -m workloads jobs attach true-" in done.stderr) == (
        words != "jobs list"
    )


def test_a_login_that_expires_in_the_queue_leaves_the_job_there_and_says_how_to_go_on(
    ray: FakeRay, cli: CommandLine
) -> None:
    ray.kubectl_refuses('*" get rayjob "*', "error: You must be logged in to the server (Unauthorized)")
    said = cli("submit", "--queue", "--", "doctor", code=7).err
    [job] = ray.ray_jobs()
    assert "gcloud auth login" in said
    assert "stays in the queue" in said and f"jobs attach {job['metadata']['name']}" in said


def test_a_job_that_the_api_server_does_not_take_leaves_no_working_directory(ray: FakeRay, cli: CommandLine) -> None:
    ray.kubectl_refuses('*" create "*', "Error from server (Forbidden): rayjobs")
    assert "(Forbidden): rayjobs" in cli("submit", "--queue", "--", "doctor", code=7).err
    assert archives(ray) == []


def test_a_job_whose_creation_was_not_answered_is_not_left_behind(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    ask = DeployedStack.ask

    def unanswered(stack: DeployedStack, *words: str, given: str | None = None) -> str:
        answer = ask(stack, *words, given=given)
        if words[0] == "create":
            assert len(ray.ray_jobs()) == len(archives(ray)) == 1
            raise PlaceError("Unable to connect to the server: EOF", "Run the command again.")
        return answer

    monkeypatch.setattr(DeployedStack, "ask", unanswered)
    assert "EOF" in cli("submit", "--queue", "--", "doctor", code=8).err
    assert ray.ray_jobs() == [] and archives(ray) == []


def test_a_job_that_kuberay_gives_up_before_it_begins_is_waited_for_no_longer(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    look, looked = queue.look, list[str]()

    def given_up(stack: DeployedStack, status: ray_job.Status) -> queue.Standing:
        looked.append(status.name)
        assert len(looked) < 3, "it is waited for"
        [job] = ray.ray_jobs()
        over = {"jobDeploymentStatus": "Failed", "reason": "ValidationFailed", "message": "the spec is not valid"}
        ray.replace_ray_job({**job, "status": over})
        return look(stack, status)

    monkeypatch.setattr(queue, "look", given_up)
    said = cli("submit", "--queue", "--", "doctor", code=5).err
    assert "failed: ValidationFailed the spec is not valid" in said and "describe rayjob doctor-" in said
    assert archives(ray) == []
