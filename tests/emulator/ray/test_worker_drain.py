"""The rendered worker command as a container runs it, on a real Ray: bash as first process of its own PID namespace.

The kernel keeps from such a process every signal that it has no handler for, so what ends a pod must reach Ray itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from emulator.gke.nodes import SPOT_GRACE_SECONDS
from emulator.machine import processes
from emulator.ray import start as ray_start
from oasis_stack.command_line.offline import Deployment
from tests.cluster.ray_processes import Nodes, headed
from tests.oasis_stack.components.test_ray_cluster import (
    as_kuberay_starts_it,
    environment,
    gib_folder,
    gpu_container,
    pods,
)
from tests.support.waiting import eventually

__all__ = ["gib_folder"]

pytestmark = pytest.mark.ray

AT_WORK = {"RUNNING", "IDLE"}
"""States of a node that Ray gives work; in the others it is drained or gone. Nodes that have gone are still told of."""

WATCH_SECONDS = 180
"""How long the states of the nodes are watched at most."""

# Prints a line for each change of what the GCS knows of the other nodes: time, state, end of the drain.
WATCHER = """
import sys, time
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2

client, before = GcsClient(address=sys.argv[1]), None
while True:
    reply = autoscaler_pb2.GetClusterStatusReply()
    reply.ParseFromString(client.get_cluster_status())
    nodes = reply.cluster_resource_state.node_states
    now = [autoscaler_pb2.NodeStatus.Name(node.status) for node in nodes if "driver" not in node.total_resources]
    if now != before:
        print(time.time(), *now, flush=True)
        before = now
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def head() -> Iterator[Nodes]:
    """Ray's head, outside the workers' PID namespaces as it is in another pod."""
    with headed({}, lambda _: ["--resources", '{"driver": 1}']) as found:
        yield found


@pytest.mark.parametrize("group", ["cpu", "gpu"])
def test_the_signal_that_ends_a_pod_starts_the_drain_while_a_spot_node_stands_and_the_worker_ends_within_its_grace(
    full: Deployment, head: Nodes, gib_folder: Path, tmp_path: Path, group: str
) -> None:
    worker = pods(full)[group]
    container = gpu_container(full, gib_folder) if group == "gpu" else worker["containers"][0]
    options = f"--address={head.address} --num-cpus=1 --node-ip-address=127.0.0.1 --object-store-memory=80000000"
    command = as_kuberay_starts_it(container, f"{options} --temp-dir={head.folder}/{group}")
    variables = {**head.variables, **environment(worker["containers"][0]), "PATH": _path_with_ray(tmp_path)}
    variables.pop("LD_LIBRARY_PATH", None)  # the plugin's and the driver's, which are not on this machine
    log = tmp_path / "worker.log"
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *_as_root()]

    with _watching(head) as watcher, _started([*namespace, *command], variables, log) as outside:
        _until(watcher, lambda states: bool(states & AT_WORK))
        first = _first_process(outside)
        told = time.time()
        os.kill(first, signal.SIGTERM)  # as the kubelet has the container runtime do
        draining = _until(watcher, lambda states: not states & AT_WORK)
        eventually(lambda: processes.start_time(first) is None, seconds=worker["terminationGracePeriodSeconds"])

    assert draining - told < SPOT_GRACE_SECONDS, log.read_text()


def _path_with_ray(folder: Path) -> str:
    """A PATH whose `ray` is the real one, allowed a second node on loopback."""
    ray = folder / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text(f'#!/bin/bash\nshift\nexec {sys.executable} -P {ray_start.__file__} "$@"\n')
    ray.chmod(0o755)
    return f"{ray.parent}{os.pathsep}{os.defpath}"


def _as_root() -> list[str]:
    return [] if os.getuid() == 0 else ["--map-root-user"]


def _first_process(unshare: subprocess.Popen[bytes]) -> int:
    """What is process 1 in there, by its number out here."""
    (child,) = psutil.Process(unshare.pid).children()
    assert Path(f"/proc/{child.pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
    return child.pid


@contextlib.contextmanager
def _watching(head: Nodes) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WATCHER, head.address]
    with subprocess.Popen(command, env=head.variables, stdout=subprocess.PIPE, text=True) as watcher:
        end = threading.Timer(WATCH_SECONDS, watcher.kill)
        end.start()
        try:
            yield watcher
        finally:
            end.cancel()
            watcher.kill()


def _until(watcher: subprocess.Popen[str], holds: Callable[[set[str]], bool]) -> float:
    """When the states of the workers were first such that it holds."""
    lines: list[str] = []
    for line in watcher.stdout or ():
        lines.append(line)
        seen, *now = line.split()
        if holds(set(now)):
            return float(seen)
    raise AssertionError(f"the workers were never in such states, but in these: {''.join(lines)}")


@contextlib.contextmanager
def _started(command: list[str], variables: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        child = subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True)
    try:
        yield child
    finally:
        everything = [*processes.in_session(child.pid), *processes.descendants(child.pid)]
        processes.end(dict.fromkeys([child.pid, *everything]), grace_seconds=3.0)
        child.wait()
