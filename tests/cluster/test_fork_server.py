"""Forked workers on a real Ray: a lost rank's group starts from the server that was there, which ends after the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from emulator.machine.state import CHECKOUT
from tests.cluster.ray_processes import Nodes, headed
from tests.support.processes import descendants
from tests.support.waiting import eventually
from workloads.cluster import fork_server
from workloads.convnext.images import digits
from workloads.convnext.run import report
from workloads.storage.folders import locate

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head and a worker of two CPUs, and of two GPUs by name, which know of this package from the driver alone."""
    with headed({"PYTHONPATH": ""}) as found:
        options = ["--num-cpus=2", "--num-gpus=2", "--min-worker-port=0", "--max-worker-port=0"]
        found.workers["worker"] = found.start("worker", f"--address={found.address}", *options)
        found.wait_for(2)
        yield found


def _below(root: int, prefix: str) -> set[int]:
    """Processes whose name begins like this."""
    return {pid for pid, line in descendants(root).items() if line.startswith(prefix)}


def _parents(pids: set[int]) -> set[int]:
    return {psutil.Process(pid).ppid() for pid in pids}


def test_a_group_that_lost_a_rank_is_forked_from_the_server_that_was_there(nodes: Nodes, tmp_path: Path) -> None:
    digits.write(str(tmp_path / "digits"), lambda _: None)
    places = ["--data", str(tmp_path / "digits"), "--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "r")]
    flags = ["--run", "forked", "--workers", "2", "--epochs", "4000", "--wandb", "off"]
    command = [sys.executable, "-m", "workloads", "train", *places, *flags, "--address", nodes.address]
    root, earlier = nodes.workers["worker"].pid, _below(os.getpid(), "ray::fork_server")
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(command, cwd=CHECKOUT, env=nodes.variables, stdout=log, stderr=subprocess.STDOUT)

    def resumed() -> list[str | None]:
        found = report.history(locate(tmp_path / "runs/forked"))
        return [record["name"] for record in found if record["event"] == "resumed"]

    try:
        eventually(lambda: "committed" in (tmp_path / "log").read_text())
        ranks = _below(root, "ray::RayTrainWorker")
        (server,) = _parents(ranks)
        assert len(ranks) == 2 and _below(root, "ray::fork_server") - earlier == {server}
        everywhere = _below(os.getpid(), "ray::fork_server")
        assert _parents(_below(os.getpid(), "ray::TrainController")) <= everywhere - {server}  # of the head's
        os.kill(min(ranks), signal.SIGKILL)
        eventually(lambda: len(resumed()) == 2)
        again = _below(root, "ray::RayTrainWorker")
        assert len(again) == 2 and not again & ranks and _parents(again) == {server}
        assert resumed()[0] is None and resumed()[1] is not None
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 130, (tmp_path / "log").read_text()
        assert (tmp_path / "log").read_text().count("interrupted") == 1
        eventually(lambda: not _below(os.getpid(), "ray::RayTrainWorker"))
        eventually(lambda: not _below(os.getpid(), "ray::fork_server") - earlier)
    finally:
        driver.kill()
        driver.wait()


GPUS = """
import os, sys

@ray.remote(num_gpus=1)
class Rank:
    def facts(self):
        return os.getppid(), "torch" in sys.modules, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]

ranks = [Rank.remote() for _ in range(2)]
servers, imported, devices, threads = zip(*ray.get([rank.facts.remote() for rank in ranks]))
print(len(set(servers)), imported, sorted(devices), threads)
"""


def test_a_fork_sees_the_gpu_that_ray_gives_it(nodes: Nodes) -> None:
    environment = {"py_executable": fork_server.executable(["torch"])}
    connect = f"import ray; ray.init({nodes.address!r}, runtime_env={environment!r}, log_to_driver=False)\n"
    done = nodes.command("-c", connect + GPUS)
    assert done.stdout.strip() == "1 (True, True) ['0', '1'] ('1', '1')", done.stderr


UNDER_UV = """
import os, sys
from workloads.cluster import session
place = session.prepare()
import ray

@ray.remote
def facts():
    return "torch" in sys.modules, sys.executable

with session.connect(place, cpus=1, imports=["torch"]):
    print(*ray.get(facts.remote()))
"""


def test_workers_of_an_embedded_ray_are_forked_under_uv_run_too(tmp_path: Path) -> None:
    (tmp_path / "run").write_text(f'{sys.executable} -c "$SCRIPT"\nexit $?\n')  # uv stays the parent of what it runs
    environment = {**os.environ, "SCRIPT": UNDER_UV, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        ["uv", "run"],
        executable="/bin/bash",
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.split()[-2:] == ["True", sys.executable], done.stderr
