"""Spare processes on a real Ray: a lost rank's group starts from them, and they go when their job does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator import processes
from emulator.state import CHECKOUT
from tests.cluster.conftest import eventually
from tests.cluster.ray_processes import Nodes, headed
from workloads import digits
from workloads.convnext import report
from workloads.convnext.spares import HELPERS, Kind, standing_by
from workloads.storage import locate

pytestmark = pytest.mark.ray


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head and a worker of two CPUs, and of two GPUs by name, which know of this package from the driver alone."""
    with headed({"PYTHONPATH": ""}) as found:
        options = ["--num-cpus=2", "--num-gpus=2", "--min-worker-port=0", "--max-worker-port=0"]
        found.workers["worker"] = found.start("worker", f"--address={found.address}", *options)
        found.wait_for(2)
        yield found


def _called(prefix: str, root: int) -> list[int]:
    """Processes below a process whose name begins like this, in the order in which they were started."""
    found = [pid for pid in processes.descendants(root) if _read(pid, "cmdline").startswith(prefix)]
    return sorted(found, key=lambda pid: int(_read(pid, "stat").rpartition(")")[2].split()[19]))


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:
        return ""


def _spares(pid: int, kind: Kind) -> set[int]:
    """Those of the job and the node that a process of Ray's belongs to, as far as Ray has named them."""
    raylet = int(_read(pid, "stat").rpartition(")")[2].split()[1])
    variables = dict(line.split("=", 1) for line in _read(pid, "environ").split("\0") if "=" in line)
    found = standing_by(raylet, variables["RAY_JOB_ID"], kind)
    return {spare for spare in found if _read(spare, "cmdline").startswith("ray::IDLE")}


def test_a_group_that_lost_a_rank_starts_from_spares_which_are_made_up_for_and_end_with_the_run(
    nodes: Nodes, tmp_path: Path
) -> None:
    digits.write(str(tmp_path / "digits"), lambda _: None)
    places = ["--data", str(tmp_path / "digits"), "--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "r")]
    flags = ["--run", "spared", "--workers", "2", "--epochs", "4000", "--wandb", "off", "--spares"]
    command = [sys.executable, "-m", "workloads", "train", *places, *flags, "--address", nodes.address]
    root = nodes.workers["worker"].pid
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(command, cwd=CHECKOUT, env=nodes.variables, stdout=log, stderr=subprocess.STDOUT)

    def whole() -> bool:
        ranks, controller = _called("ray::RayTrainWorker", root), _called("ray::TrainController", os.getpid())
        return (
            len(ranks) == 2
            and len(_spares(ranks[0], Kind.RANK)) == 2
            and len(_spares(controller[0], Kind.HELPER)) == HELPERS
        )

    try:
        eventually(whole, 240)
        ranks = _called("ray::RayTrainWorker", root)
        spares = _spares(ranks[0], Kind.RANK)
        assert not spares & set(ranks)
        os.kill(ranks[1], signal.SIGKILL)
        eventually(lambda: set(_called("ray::RayTrainWorker", root)) == spares, 60)
        eventually(whole, 240)  # as many as before, though all were used
        resumed = [found for found in report.history(locate(tmp_path / "runs/spared")) if found["event"] == "resumed"]
        assert len(resumed) == 2 and resumed[1]["name"] is not None
        ended = {*_called("ray::", root), *_called("ray::TrainController", os.getpid())}
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 130, (tmp_path / "log").read_text()
        # What is left idle was there for anybody, and has none of it imported.
        eventually(lambda: not [pid for pid in ended if Kind.RANK.value in _read(pid, "environ")], 60)
        assert "no spare processes" not in (tmp_path / "log").read_text()
    finally:
        driver.kill()
        driver.wait()


GPUS = """
import os, time
from workloads.convnext import spares
from workloads.convnext.spares import Kind

@ray.remote(num_gpus=1, runtime_env={"env_vars": Kind.RANK.variables})
class Rank:
    def provide(self):
        spares.provide(Kind.RANK, 2)
        job = ray.get_runtime_context().get_job_id()
        while True:
            found = spares.standing_by(os.getppid(), job, Kind.RANK)
            if [open(f"/proc/{pid}/comm").read().strip() for pid in found] == ["ray::IDLE"] * 2:
                return found
            time.sleep(0.2)

    def facts(self):
        return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]

first = Rank.remote()
standing = ray.get(first.provide.remote())
ray.kill(first)
pids, devices = zip(*ray.get([rank.facts.remote() for rank in [Rank.remote(), Rank.remote()]]))
print(set(pids) == set(standing), sorted(devices))
"""


def test_a_spare_sees_the_gpu_that_ray_gives_its_rank_though_it_was_there_before(nodes: Nodes) -> None:
    assert nodes.python(GPUS) == "True ['0', '1']"
