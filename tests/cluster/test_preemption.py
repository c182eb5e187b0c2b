"""Nodes that are taken from a run, with notice: by Ray's drain, and by the SIGTERM that ends a pod."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.machine.state import CHECKOUT
from tests.cluster.ray_processes import Nodes, headed
from tests.support.processes import descendants
from tests.support.waiting import eventually, read_rest, read_until
from workloads.convnext.images import digits
from workloads.environment import API_SERVER_VARIABLE
from workloads.reporting.history import history, parse
from workloads.storage.folders import locate

pytestmark = pytest.mark.ray

EVENTS = ("notice", "resumed", "checkpoint", "epoch")

DRAIN_SECONDS = 8
"""Between the notice and the end of a node."""


DRAIN = """
import time
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
(node,) = [node["NodeID"] for node in ray.nodes() if node["Alive"] and "/{name}/" in node["RayletSocketName"]]
reason, deadline = autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION, int((time.time() + {seconds}) * 1000)
accepted, why = GcsClient(address=ray.get_runtime_context().gcs_address).drain_node(node, reason, "test", deadline)
assert accepted, why
"""
"""What `ray drain-node` does: that command's own check of the node's id wants one that is not draining already."""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head and three workers with a CPU each, which take DRAIN_SECONDS to go when they are told to."""
    with headed({"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DRAIN_SECONDS)}) as found:
        for number in range(3):
            name = f"worker{number}"
            # Ports that the kernel gives: nodes that share an address would hand out the same ones of a range.
            options = ["--num-cpus=1", "--min-worker-port=0", "--max-worker-port=0"]
            found.workers[name] = found.start(name, f"--address={found.address}", *options)
        found.wait_for(4)
        yield found


def _training(nodes: Nodes) -> list[str]:
    """Names of the nodes that have a training worker."""
    return [
        name
        for name, process in nodes.workers.items()
        if any(line.startswith("ray::RayTrainWorker") for line in descendants(process.pid).values())
    ]


def test_a_drained_node_and_one_told_to_end_cost_a_run_no_more_than_a_few_steps(nodes: Nodes, tmp_path: Path) -> None:
    digits.write(str(tmp_path / "digits"), lambda _: None)
    recipe = ["--data", str(tmp_path / "digits"), "--workers", "1:2", "--wandb", "off"]
    recipe += ["--epochs", "100000"]  # more than any machine does before it is interrupted
    places = ["--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "workloads", "train", "--run", "taken", "--address", nodes.address]
    environment = nodes.variables | {"OASIS_PROGRESS": "json"}
    log = tmp_path / "said"
    with log.open("w") as said:
        driver = subprocess.Popen(
            [*command, *recipe, *places], cwd=CHECKOUT, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        eventually(lambda: len(_told(log, "epoch")) >= 2)
        drained = _training(nodes)[0]
        nodes.python(DRAIN.format(name=drained, seconds=DRAIN_SECONDS))
        eventually(lambda: len(_told(log, "resumed")) >= 2 and drained not in _training(nodes))
        since = len(_told(log, "epoch"))
        eventually(lambda: len(_told(log, "epoch")) >= since + 2)
        nodes.workers[_training(nodes)[0]].send_signal(signal.SIGTERM)
        eventually(lambda: len(_told(log, "resumed")) >= 3)
        since = len(_told(log, "epoch"))
        eventually(lambda: len(_told(log, "epoch")) >= since + 2)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=400) == 130, log.read_text()
    finally:
        driver.kill()
        driver.wait()

    # What is committed is the whole truth: a node that goes takes along what it had not reported yet.
    records = history(locate(tmp_path / "runs" / "taken"))
    by_event = {event: [record for record in records if record["event"] == event] for event in EVENTS}
    notices, resumed = by_event["notice"], by_event["resumed"]
    assert [record["world_size"] for record in resumed] == [2, 2, 1], log.read_text()
    assert len(notices) == 2, log.read_text()
    committed = {record["name"]: record for record in by_event["checkpoint"]}
    for notice, after in zip(notices, resumed[1:], strict=True):
        assert after["step"] >= notice["step"], "it went on from the notice's own checkpoint, or from a later one"
        saved = next(record for record in committed.values() if record["step"] == notice["step"])
        assert saved["reason"] == "notice"
        assert saved["time"] - notice["time"] < DRAIN_SECONDS
    epochs = [record["epoch"] for record in by_event["epoch"]]
    assert epochs == list(range(1, len(epochs) + 1)), "each epoch once, also one that was told before and after"
    # A notice in an epoch's evaluation has it evaluated after the start: this epoch is no more than told then.
    assert len(epochs) >= math.ceil(resumed[-1]["epoch"]) - 1 >= 2, "all that it went on from"


GATHERING = """
import json, threading, time
from ray.util.placement_group import placement_group, remove_placement_group
from workloads.cluster import worker_count

worker_count.SETTLE_SECONDS = {settle}

def gather():
    began = time.monotonic()
    count = worker_count.gather({{"CPU": 1}}, 1, 3, 300, lambda line: None, "PACK")
    return count, time.monotonic() - began

taken = placement_group([{{"CPU": 1}}])
ray.get(taken.ready())
threading.Timer({seconds}, remove_placement_group, [taken]).start()
found = [gather()]
{drain}
found.append(gather())
print(json.dumps(found))
"""


HOLDING = """
from workloads.cluster import capacity

capacity.PATIENCE_SECONDS = 1.0
with capacity.hold([{"CPU": 1}] * 3, 300, lambda line: print(line, flush=True), "PACK"):
    print("held")
"""


def test_a_place_that_comes_back_is_waited_for_and_one_on_a_node_that_goes_or_is_gone_is_not(nodes: Nodes) -> None:
    nodes.workers["worker0"].send_signal(signal.SIGTERM)
    assert "InfeasibleError" in nodes.run(HOLDING).stderr
    nodes.variables[API_SERVER_VARIABLE] = "10.0.0.1"  # in a pod
    with nodes.begin(HOLDING) as waits:
        read_until(waits, "KubeRay makes another pod for one that was lost")
        nodes.workers["worker0"] = nodes.start("worker0", *nodes.options["worker0"])
        assert read_rest(waits).endswith("held\n")

    drain = DRAIN.format(name="worker1", seconds=600)
    freed, drained = json.loads(nodes.python(GATHERING.format(seconds=5, settle=100, drain=drain)))
    assert freed[0] == 3 and freed[1] > 4
    assert drained[0] == 2 and drained[1] < 100


def _told(log: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in parse(log.read_text()) if record.get("event") == event]
