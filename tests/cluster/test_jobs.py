"""Jobs on a real Ray, submitted, followed and stopped as a user does it."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.ray import nodes as ray_nodes
from emulator.ray.folder import session_directory
from tests.cluster.conftest import Cluster
from tests.support import stub_kubectl
from tests.support.cutting_proxy import CuttingProxy
from tests.support.processes import running
from tests.support.waiting import eventually, read_rest, read_until
from workloads.doctor import listeners

pytestmark = pytest.mark.ray

INSPECT = """
import os, ray
ray.init(logging_level="error")
[here] = [node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id()]
print("cpus", ray.cluster_resources()["CPU"], "of them here", here["Resources"].get("CPU", 0))
for name in ("OASIS_GPUS_PER_NODE", "OASIS_RDMA_NICS", "OASIS_ZONE", "OASIS_RUNS_MOUNT"):
    print(name, os.environ[name])
"""

MEET = """
import os, pathlib, sys, time, ray
ray.init(logging_level="error")
room = pathlib.Path(os.environ["ROOM"])
room.mkdir(exist_ok=True)
(room / sys.argv[1]).touch()
while not (room / "leave").exists():
    time.sleep(0.1)
(room / f"{sys.argv[1]}-left").touch()
"""


def test_a_job_runs_on_the_head_with_the_stack_s_variables_and_returns_its_exit_code(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "inspect_place.py").write_text(INSPECT + "raise SystemExit(42)\n")
    done = cluster.run("submit", "--working-dir", str(tmp_path), "--", "python", "inspect_place.py")
    assert done.returncode == 42, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert "cpus 2.0 of them here 0" in lines  # so the driver is on the head
    assert "OASIS_ZONE us-central1-a" in lines
    assert "OASIS_GPUS_PER_NODE 0" in lines and "OASIS_RDMA_NICS 0" in lines
    assert f"OASIS_RUNS_MOUNT {cluster.bucket(cluster.environment.runs_uri)}" in lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_stop_the_job_and_what_it_started(cluster: Cluster, number: int) -> None:
    seconds = str(10**6 + os.getpid())  # no other run of the tests sleeps as long
    client = cluster.start("submit", "--", "sleep", seconds)
    eventually(lambda: f"sleep {seconds} " in running("sleep ").values())  # the job, not the client, which names it too
    client.send_signal(number)
    output, _ = client.communicate(timeout=400)
    assert client.returncode == 130, output
    eventually(lambda: f"sleep {seconds} " not in running("sleep ").values())
    (job,) = re.findall(r"^job (\S+) submitted", output, re.MULTILINE)
    assert re.search(rf"{job} +STOPPED", cluster.run("jobs", "list").stdout)


WANTED = """
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
import ray
ray.init(logging_level="error")
reply = GetClusterStatusReply()
reply.ParseFromString(GcsClient(address=ray.get_runtime_context().gcs_address).get_cluster_status())
asked = reply.cluster_resource_state.pending_resource_requests
print("GPUs wanted:", int(sum(one.count * one.request.resources_bundle.get("GPU", 0) for one in asked)))
"""
"""Prints what the autoscaler is asked for."""


def test_a_job_that_waits_for_a_gpu_is_stopped_and_asks_for_it_no_more(cluster: Cluster) -> None:
    def wanted() -> str:
        return cluster.run("submit", "--", "python", "-c", WANTED).stdout

    submit = ("submit", "--num-gpus", "8", "--", "sleep", "1")
    client, job = cluster.start(*submit), cluster.run(submit[0], "--detach", *submit[1:]).stdout.strip()
    output = read_until(client, "Ctrl-C stops it")
    (followed,) = re.findall(r"^job (\S+) submitted", output, re.MULTILINE)
    eventually(lambda: "GPUs wanted: 16" in wanted())
    stopped = cluster.run("jobs", "stop", job)
    assert (stopped.returncode, stopped.stdout) == (0, f"{job} stopped\n"), stopped.stderr
    assert "a small job on the head ends it" in stopped.stderr
    client.send_signal(signal.SIGINT)
    output = read_rest(client)
    assert client.returncode == 130 and "it has stopped" in output, output
    listed = cluster.run("jobs", "list").stdout
    assert all(re.search(rf"{name} +STOPPED", listed) for name in (job, followed)), listed
    assert not re.search(r"^ *stop-", listed, re.MULTILINE), listed
    assert "python -c ' from ray._raylet import GcsClient from ray.core" in listed
    assert cluster.run("jobs", "attach", job).returncode == 130
    eventually(lambda: "GPUs wanted: 0" in wanted())


def test_a_training_job_meets_on_loopback_reaches_95_percent_and_leaves_its_results_in_the_bucket_and_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    environment = cluster.environment
    written = cluster.run("digits", "--to", f"{environment.data_uri}/digits")
    assert written.returncode == 0, written.stderr
    run = f"digits-{secrets.token_hex(4)}"
    train = ["train", "--recipe", "digits_laptop", "--run", run, "--epochs", "10", "--wandb", "off"]
    client = cluster.start("submit", "--results", str(tmp_path), "--", *train)
    output = read_until(client, "epoch   2")
    workers = cluster.processes("ray::RayTrainWorker")
    driver = cluster.processes(f"--run {run}")
    assert len(workers) == 2 and len(listeners.of(workers)) > 2 and driver
    found = listeners.of(cluster.processes())
    assert [address for address, loopback in found if not loopback] == []
    rest = read_rest(client)
    assert client.returncode == 0, output + rest

    here, kept = tmp_path / run, cluster.bucket(environment.runs_uri) / run
    files = ["curve.png", "metrics.jsonl", "summary.json", "table.txt"]
    assert [sorted(path.name for path in folder.iterdir()) for folder in (here, kept / "results")] == [files, files]
    assert all((here / name).read_bytes() == (kept / "results" / name).read_bytes() for name in files)
    assert (here / "curve.png").read_bytes().startswith(b"\x89PNG")
    history = [json.loads(line) for line in (here / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in history if record["event"] == "epoch"] == list(range(1, 11))
    summary = json.loads((here / "summary.json").read_text())
    assert (summary["workers"], summary["backend"], summary["device"]) == (2, "gloo", "cpu")
    assert summary["val/accuracy"] >= 0.95
    assert list((kept / "checkpoints").rglob("COMMIT"))


def test_two_jobs_with_cpus_of_their_own_run_at_once_and_a_third_waits_for_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "meet.py").write_text(MEET)
    submit = ["submit", "--working-dir", str(tmp_path), "--env", f"ROOM={tmp_path}/room", "--entrypoint-num-cpus", "1"]
    clients = [cluster.start(*submit, "--", "python", "meet.py", name) for name in ("one", "two")]
    eventually(lambda: len(list(tmp_path.glob("room/*"))) == 2)
    third = cluster.run(*submit, "--detach", "--", "python", "meet.py", "three").stdout.strip()
    eventually(lambda: re.search(rf"{third} +PENDING", cluster.run("jobs", "list").stdout))
    assert not (tmp_path / "room" / "three").exists()
    (tmp_path / "room" / "leave").touch()
    outputs = [client.communicate(timeout=400)[0] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], outputs
    assert cluster.run("jobs", "attach", third).returncode == 0
    assert all((tmp_path / "room" / f"{name}-left").exists() for name in ("one", "two", "three"))


def test_what_a_job_on_a_worker_prints_is_shown_and_a_log_that_is_gone_is_said_to_be(cluster: Cluster) -> None:
    job = ""
    for _ in range(3):
        done = cluster.run("submit", "--num-cpus", "1", "--", "python3", "-c", "print('hello', 6 * 7)")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "hello 42" in done.stdout.splitlines()
        assert "is not shown" not in done.stderr
        (job,) = re.findall(r"^job (\S+) submitted", done.stderr, re.MULTILINE)
    assert "hello 42" in cluster.run("jobs", "logs", job).stdout
    for log in session_directory(cluster.state.directory).rglob(f"job-driver-{job}.log"):
        log.unlink()
    for action in ("logs", "attach"):
        again = cluster.run("jobs", action, job)
        assert again.returncode == 0
        assert f"the output of job {job} is not shown: node 127.0.0.1, which ran it" in again.stderr


def test_a_job_that_no_node_can_ever_hold_is_refused(cluster: Cluster) -> None:
    before = cluster.run("jobs", "list").stdout
    done = cluster.run("submit", "--entrypoint-resources", '{"CPU": 1000}', "--", "sleep", "1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "1000 CPU on one node" in done.stderr and "node 127.0.0.1: 1 CPU" in done.stderr
    assert cluster.run("jobs", "list").stdout.count("sleep 1") == before.count("sleep 1")


def test_over_connections_that_are_cut_in_mid_answer_no_line_is_lost_or_repeated(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "count.py").write_text(
        "import time\nfor i in range(400): print('tick', i); time.sleep(0.02)\nexit(7)\n"
    )
    port = int(cluster.environment.ray_dashboard_url.rpartition(":")[2])
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    with CuttingProxy(port, share=0.5).running() as proxy:
        elsewhere = replace(cluster.environment, ray_dashboard_url="http://127.0.0.1:1")
        path = stub_kubectl.install(bin_folder, elsewhere, cluster.token, behind=proxy.port)
        far = replace(cluster, variables={**cluster.variables, "PATH": path})
        done = far.run("submit", "--working-dir", str(tmp_path), "--", "python", "count.py")
    assert done.returncode == 7, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("tick")] == [f"tick {i}" for i in range(400)]
    assert proxy.cut > 3


def test_a_detached_job_is_attached_to_and_stopped_by_its_id(cluster: Cluster) -> None:
    command = ["python", "-uc", "import time\nfor i in range(9999): print('tick', i); time.sleep(0.2)"]
    submitted = cluster.run("submit", "--detach", "--", *command)
    job = submitted.stdout.strip()
    assert submitted.returncode == 0, submitted.stderr
    attached = cluster.start("jobs", "attach", job)
    read_until(attached, "tick 3")
    attached.send_signal(signal.SIGINT)
    output = read_rest(attached)
    assert attached.returncode == 130 and f"job {job} goes on" in output
    assert cluster.run("jobs", "stop", job).returncode == 0
    log = cluster.run("jobs", "logs", job).stdout.splitlines()
    ticks = [int(line.split()[1]) for line in log if line.startswith("tick")]
    assert ticks == list(range(len(ticks))) and len(ticks) > 3
    assert cluster.run("jobs", "attach", job).returncode == 130


def test_without_the_token_and_with_a_wrong_one_the_jobs_api_refuses(cluster: Cluster) -> None:
    for headers, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 403)):
        request = urllib.request.Request(f"{cluster.environment.ray_dashboard_url}/api/jobs/", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=10)
        refusal.value.close()
        assert refusal.value.code == status


def test_no_process_of_the_cluster_listens_beyond_loopback(cluster: Cluster) -> None:
    found = listeners.of(cluster.processes())
    assert len(found) > 10  # three raylets, the GCS, the dashboard and the agents
    assert {address.rpartition(":")[0] for address, _ in found} == {"127.0.0.1"}
    assert all(loopback for _, loopback in found)


def test_the_status_screen_shows_the_nodes_and_the_jobs(cluster: Cluster) -> None:
    def settled() -> bool:
        # What is in use Ray's dashboard knows late, of nodes that have just come and of jobs that have just ended.
        shown = cluster.run("status")
        assert shown.returncode == 0, shown.stderr
        free = shown.stdout.count(" of 1 CPU") == 2 and "drivers of 0 jobs" in shown.stdout
        return free and shown.stdout.count("alive") == 3

    eventually(settled)


def test_the_doctor_finds_the_place_of_a_job_fit(cluster: Cluster) -> None:
    done = cluster.run("submit", "--", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gs://test-runs: written, read, deleted" in done.stdout
    assert "token" in next(line for line in done.stdout.splitlines() if "authentication" in line)
    assert not list(cluster.bucket(cluster.environment.runs_uri).glob(".doctor-*"))


def test_starting_again_changes_nothing_while_all_nodes_run(cluster: Cluster) -> None:
    before = cluster.state.processes()
    deployed = ray_nodes.DeployedRay(
        environment={name: str(value) for name, value in vars(cluster.environment).items()}, token=cluster.token
    )
    ray_nodes.start(cluster.state, deployed, {}, print)
    assert cluster.state.processes() == before
