"""Commands on a Ray whose own autoscaler adds the nodes that they ask for: it can, it never can, or it cannot now."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.ray_processes import Nodes, headed
from tests.support import autoscaled_nodes
from tests.support.waiting import eventually
from workloads.convnext.run import report
from workloads.storage.folders import locate

pytestmark = pytest.mark.ray

MOST_NODES = 2

BENCH = ("-m", "workloads", "bench", "--sizes", "1K", "--iterations", "5")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head alone; further nodes come when they are asked for, and go when they are idle."""

    def options(found: Nodes) -> list[str]:
        file = found.folder / "autoscaler.json"
        files = found.folder / "none", found.folder / "slow"
        file.write_text(json.dumps(autoscaled_nodes.configuration(found.address, MOST_NODES, *files)))
        return [f"--autoscaling-config={file}"]

    with headed(autoscaled_nodes.VARIABLES, options) as found:
        found.wait_for(1)
        yield found


def bench(nodes: Nodes, *words: str) -> subprocess.CompletedProcess[str]:
    places = ("--address", nodes.address, "--results", str(nodes.folder / "results"))
    return nodes.command(*BENCH, *places, *words, timeout=240)


def test_nodes_that_are_not_there_yet_are_waited_for_used_and_let_go(nodes: Nodes) -> None:
    done = bench(nodes, "--nodes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert "waiting for 2 nodes with 1 CPU: 0 of them up" in said
    assert re.search("0 of them up, [12] being added", said), said
    assert "1 of them up, 2 being added" not in said
    assert "# Out of bounds values : 0 OK" in done.stdout
    nodes.wait_for(1)


def test_more_nodes_than_the_autoscaler_may_add_are_refused(nodes: Nodes) -> None:
    done = bench(nodes, "--nodes", str(MOST_NODES + 1))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "This cluster can never give 3 nodes with 1 CPU" in done.stderr
    assert "its autoscaler can add none" in done.stderr


def test_a_node_larger_than_any_that_the_autoscaler_has_is_refused(nodes: Nodes) -> None:
    done = bench(nodes, "--nodes", "1", "--ranks-per-node", "2")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "This cluster can never give 1 node with 2 CPU" in done.stderr


LET_GO = """
import time
from workloads.cluster import autoscaler
asked = autoscaler.read().resource_version
while (reply := autoscaler.read()).launching or reply.seen_version <= asked:
    time.sleep(0.5)
"""
"""Ends once the autoscaler has looked anew and adds nothing any more."""


def test_a_stock_out_is_waited_for_with_its_failures_and_given_up_when_the_user_said(nodes: Nodes) -> None:
    nodes.wait_for(1)
    (nodes.folder / "none").touch()
    try:
        done = bench(nodes, "--nodes", "2", "--timeout", "15")
        nodes.python(LET_GO)  # what a command that has ended wanted would come now, into the next test
    finally:
        (nodes.folder / "none").unlink()
    assert done.returncode == 4, done.stdout + done.stderr
    assert "attempts to add one failed" in done.stdout + done.stderr
    assert "Not there within" in done.stderr and "0 of them up" in done.stderr


LAUNCHING = "from workloads.cluster import autoscaler; print(autoscaler.read().launching)"


def test_nodes_that_nobody_wants_any_more_are_given_back_also_before_they_are_up(nodes: Nodes) -> None:
    nodes.wait_for(1)
    (nodes.folder / "slow").touch()
    try:
        done = bench(nodes, "--nodes", "2", "--timeout", "15")
        assert done.returncode == 4, done.stdout + done.stderr
        assert "2 being added" in done.stdout + done.stderr
        eventually(lambda: nodes.python(LAUNCHING) == "0")
    finally:
        (nodes.folder / "slow").unlink()


def test_a_run_on_a_cluster_without_a_node_gets_them_trains_and_lets_them_go(nodes: Nodes) -> None:
    words = ("--data", "synthetic", "--epochs", "1", "--batch-size", "64", "--workers", f"1:{MOST_NODES}")
    places = ("--storage", str(nodes.folder / "runs"), "--results", str(nodes.folder / "results"))
    done = nodes.command("-m", "workloads", "train", "--address", nodes.address, "--run", "grown", *words, *places)
    assert done.returncode == 0, done.stdout + done.stderr
    history = report.history(locate(nodes.folder / "runs" / "grown"))
    assert [record["epoch"] for record in history if record["event"] == "epoch"] == [1]
    nodes.wait_for(1)
