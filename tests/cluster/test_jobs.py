"""Jobs on a real Ray, submitted, followed and stopped as a user does it."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from emulator import processes, ray_nodes
from tests.cluster.conftest import Cluster, eventually
from workloads import listeners

pytestmark = pytest.mark.ray

INSPECT = """
import os, ray
ray.init(logging_level="error")
[here] = [node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id()]
print("cpus", ray.cluster_resources()["CPU"], "of them here", here["Resources"].get("CPU", 0))
for name in ("OASIS_GPUS_PER_NODE", "OASIS_RDMA_NICS", "OASIS_ZONE", "OASIS_RUNS_MOUNT"):
    print(name, os.environ[name])
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


def test_ctrl_c_stops_the_job_and_what_it_started(cluster: Cluster) -> None:
    client = cluster.start("submit", "--", "sleep", "54321")
    eventually(lambda: _running("54321"))
    client.send_signal(signal.SIGINT)
    output, _ = client.communicate(timeout=60)
    assert client.returncode == 130, output
    eventually(lambda: not _running("54321"))
    assert "STOPPED" in cluster.run("jobs", "list").stdout


def test_a_detached_job_is_attached_to_and_stopped_by_its_id(cluster: Cluster) -> None:
    command = ["python", "-uc", "import time\nfor i in range(9999): print('tick', i); time.sleep(0.2)"]
    submitted = cluster.run("submit", "--detach", "--", *command)
    job = submitted.stdout.strip()
    assert submitted.returncode == 0, submitted.stderr
    attached = cluster.start("jobs", "attach", job)
    assert attached.stdout is not None
    while "tick 3" not in attached.stdout.readline():
        assert attached.poll() is None
    attached.send_signal(signal.SIGINT)
    output, _ = attached.communicate(timeout=30)
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
    found = listeners.of(pid for node in cluster.state.processes() for pid in processes.session_of(node))
    assert len(found) > 10  # three raylets, the GCS, the dashboard and the agents
    assert {address.rpartition(":")[0] for address, _ in found} == {"127.0.0.1"}
    assert all(loopback for _, loopback in found)


def test_the_status_screen_shows_the_nodes_and_the_jobs(cluster: Cluster) -> None:
    shown = cluster.run("status")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("alive") == 3
    assert "/1000.0 driver" in shown.stdout and "/1.0 CPU" in shown.stdout


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


def _running(argument: str) -> bool:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile
                continue
            if words[0] == b"sleep" and argument.encode() in words:
                return True
    return False
