"""The loader's processes on a real Ray: none is a fork of a rank, and whatever is killed leaves none behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.cluster.test_train import Bench, run_python, survivors, until
from tests.support.processes import descendants
from workloads.convnext.images import digits
from workloads.environment import FORK_VARIABLE

pytestmark = pytest.mark.ray

STREAMED = ("--set", "resident=false", "--set", "loader_workers=2", "--workers", "2", "--wandb", "off")

RECORDING = """
import json, os, sys
from pathlib import Path

def fork():
    title = Path("/proc/self/cmdline").read_text().replace("\\0", " ").strip()
    distributed = sys.modules.get("torch.distributed")
    grouped = distributed is not None and hasattr(distributed, "is_initialized") and distributed.is_initialized()
    with open(os.environ["FORKS"], "a") as file:
        file.write(json.dumps([title, grouped]) + "\\n")

os.register_at_fork(before=fork)
"""
"""A `sitecustomize`, which each Python imports when it starts: notes each fork, and whose it is."""


def test_no_rank_is_forked_once_ray_and_its_group_are_up_and_runs_are_bitwise_equal(tmp_path: Path) -> None:
    digits.write(str(tmp_path / "digits"), lambda _: None)
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(RECORDING)
    path = os.pathsep.join([str(tmp_path / "hook"), str(Path(__file__).parents[2])])
    losses = []
    for forked in ("1", "0"):
        forks = tmp_path / f"forks-{forked}"
        places = ["--data", str(tmp_path / "digits"), "--run", f"forked-{forked}", "--epochs", "2"]
        variables = {"PYTHONPATH": path, "FORKS": str(forks), FORK_VARIABLE: forked}
        done = run_python("-m", "workloads", "train", *places, *STREAMED, directory=tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        seen = [json.loads(line) for line in forks.read_text().splitlines()]
        assert [title for title, grouped in seen if grouped or title.startswith("ray::RayTrainWorker")] == []
        assert any(title.startswith("ray::fork_server") for title, _ in seen) == (forked == "1")
        # Two ranks, each with two processes.
        assert sum("multiprocessing.forkserver" in title for title, _ in seen) == 4
        summary = json.loads((tmp_path / ".oasis" / "results" / f"forked-{forked}" / "summary.json").read_text())
        losses.append(summary["val/loss"])
    assert losses[0] == losses[1]


def test_a_killed_decoder_and_a_killed_rank_cost_a_restart_and_ctrl_c_leaves_no_decoder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    digits.write(str(bench.data), lambda _: None)
    process = bench.start("streamed", "--epochs", "4000", *STREAMED)

    def named(part: str) -> dict[int, str]:
        return {pid: line for pid, line in descendants(process.pid).items() if part in line}

    def decoding() -> dict[int, str]:
        """Each rank's server and the two processes that it has forked, which decode, once they are there."""
        until(lambda: len(named("multiprocessing.forkserver")) >= 2 * (1 + 2), process)
        return named("multiprocessing.forkserver")

    def goes_on() -> None:
        """Wait until the run has a newer checkpoint, with which its history is stored, too."""
        before = bench.checkpoints("streamed")[-1:]
        until(lambda: bench.checkpoints("streamed")[-1:] > before, process)

    decoders = decoding()  # within the first epoch: nothing has been reported yet, nor stored
    servers = {psutil.Process(pid).ppid() for pid in decoders}
    os.kill(next(pid for pid in decoders if pid not in servers), signal.SIGKILL)
    until(lambda: decoders.keys().isdisjoint(named("multiprocessing.forkserver")), process)

    goes_on()
    starts = len(bench.resumed("streamed"))
    decoders = decoding()
    os.kill(min(named("RayTrainWorker")), signal.SIGKILL)
    until(lambda: len(bench.resumed("streamed")) == starts + 1, process)
    assert survivors(decoders) == {}

    goes_on()
    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 130, said
    assert "a process that decodes images has died" in said
    assert "interrupted; the same command with --run streamed continues from the newest checkpoint, of step " in said
    assert survivors(family) == {}
