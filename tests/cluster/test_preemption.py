"""Nodes that are taken from a run, with notice: by Ray's drain, and by the SIGTERM that ends a pod."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from emulator import processes, ray_start
from workloads import digits
from workloads.convnext import report
from workloads.storage import locate
from workloads.tracking import parse

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

EVENTS = ("notice", "resumed", "checkpoint", "epoch")

DRAIN_SECONDS = 8
"""Between the notice and the end of a node."""


DRAIN = """
import time
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
(node,) = [node["NodeID"] for node in ray.nodes() if "/{name}/" in node["RayletSocketName"]]
reason, deadline = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION, int((time.time() + {seconds}) * 1000)
accepted, why = GcsClient(address=ray.get_runtime_context().gcs_address).drain_node(node, reason, "test", deadline)
assert accepted, why
"""
"""What `ray drain-node` does: that command's own check of the node's id wants one that is not draining already."""


@dataclass
class Nodes:
    """A Ray of several nodes on 127.0.0.1: a head, and workers with a CPU each."""

    folder: Path
    port: int
    variables: dict[str, str]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By name; `ray start --block` of each."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """`ray start --block` of one more node."""
        common = ["--node-ip-address=127.0.0.1", f"--temp-dir={self.folder}/{name}", "--memory=2000000000"]
        command = [sys.executable, "-P", ray_start.__file__, *common, "--object-store-memory=80000000", "--block"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*command, *options], env=self.variables, stdout=log, stderr=subprocess.STDOUT)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a script that is connected to this Ray."""
        connect = f"import ray; ray.init({self.address!r}, log_to_driver=False, logging_level='ERROR')\n"
        command = [sys.executable, "-c", connect + script]
        return subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=400)

    def python(self, script: str) -> str:
        """What such a script prints."""
        done = self.run(script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def training(self) -> list[str]:
        """Names of the nodes that have a training worker."""
        return [
            name
            for name, process in self.workers.items()
            if any(_command(pid).startswith("ray::RayTrainWorker") for pid in processes.descendants(process.pid))
        ]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head and three workers, which take DRAIN_SECONDS to go when they are told to."""
    with tempfile.TemporaryDirectory(prefix="oasis-notice-", dir="/tmp") as folder:  # unix(7): 107 characters
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OASIS_", "WANDB_"))}
        variables = own | {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every listener on 127.0.0.1; see emulator/ray_start.py
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DRAIN_SECONDS),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        found = Nodes(Path(folder), port, variables)
        head = found.start("head", "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        try:
            _until(lambda: _listens(port))
            for number in range(3):
                name = f"worker{number}"
                # Ports that the kernel gives: nodes that share an address would hand out the same ones of a range.
                options = ["--num-cpus=1", "--min-worker-port=0", "--max-worker-port=0"]
                found.workers[name] = found.start(name, f"--address={found.address}", *options)
            # On a busy machine the head listens long before it is a node that can be connected to.
            _until(lambda: found.run("print(ray.cluster_resources().get('CPU', 0))").stdout.strip() == "3.0", 120)
            yield found
        finally:
            started = [process.pid for process in (*found.workers.values(), head)]
            processes.end(dict.fromkeys([*started, *processes.descendants(*started)]), 2)
            for process in (*found.workers.values(), head):
                process.wait()


def test_a_drained_node_and_one_told_to_end_cost_a_run_no_more_than_a_few_steps(nodes: Nodes, tmp_path: Path) -> None:
    digits.write(str(tmp_path / "digits"), lambda _: None)
    recipe = ["--data", str(tmp_path / "digits"), "--workers", "1:2", "--epochs", "60", "--wandb", "off"]
    places = ["--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "workloads", "train", "--run", "taken", "--address", nodes.address]
    environment = nodes.variables | {"OASIS_PROGRESS": "json"}
    log = tmp_path / "said"
    with log.open("w") as said:
        driver = subprocess.Popen(
            [*command, *recipe, *places], cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        _until(lambda: len(_told(log, "epoch")) >= 2, 120)
        drained = nodes.training()[0]
        nodes.python(DRAIN.format(name=drained, seconds=DRAIN_SECONDS))
        _until(lambda: len(_told(log, "resumed")) >= 2 and drained not in nodes.training(), 120)
        since = len(_told(log, "epoch"))
        _until(lambda: len(_told(log, "epoch")) >= since + 2, 120)
        nodes.workers[nodes.training()[0]].send_signal(signal.SIGTERM)
        _until(lambda: len(_told(log, "resumed")) >= 3, 120)
        assert driver.wait(timeout=400) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()

    # What is committed is the whole truth: a node that goes takes along what it had not reported yet.
    history = report.history(locate(tmp_path / "runs" / "taken"))
    by_event = {event: [record for record in history if record["event"] == event] for event in EVENTS}
    notices, resumed = by_event["notice"], by_event["resumed"]
    assert [record["world_size"] for record in resumed] == [2, 2, 1], log.read_text()
    assert len(notices) == 2, log.read_text()
    committed = {record["name"]: record for record in by_event["checkpoint"]}
    for notice, after in zip(notices, resumed[1:], strict=True):
        assert after["step"] >= notice["step"], "it went on from the notice's own checkpoint, or from a later one"
        saved = next(record for record in committed.values() if record["step"] == notice["step"])
        assert saved["reason"] == "notice"
        assert saved["time"] - notice["time"] < DRAIN_SECONDS
    assert [record["epoch"] for record in by_event["epoch"]] == list(range(1, 61))


def _command(pid: int) -> str:
    """The title of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def _told(log: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in parse(log.read_text()) if record.get("event") == event]


def _listens(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(0.2)
