"""The benchmark on two gloo nodes of a real Ray, and in this process."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster, eventually, rows
from workloads import listeners

pytestmark = pytest.mark.ray


def test_two_nodes_are_measured_checked_and_reported_in_the_bucket_and_here(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ["--nodes", "2", "--sizes", "1K:1M:32", "--iterations", "5", "--name", "two-nodes"]
    done = cluster.run("submit", "--results", str(tmp_path), "--", "bench", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes, 2 ranks, gloo on CPU" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    here, bucket = tmp_path / "two-nodes", cluster.bucket(cluster.environment.runs_uri) / "bench" / "two-nodes"
    for folder in (here, bucket):
        assert sorted(file.name for file in folder.iterdir()) == [
            f"all_reduce.{kind}" for kind in ("jsonl", "png", "txt")
        ]
    assert (here / "all_reduce.jsonl").read_bytes() == (bucket / "all_reduce.jsonl").read_bytes()
    head = json.loads((here / "all_reduce.jsonl").read_text().splitlines()[0])
    assert len(set(head["hosts"])) == 2 and head["machine_type"] == ""
    measured = rows(here / "all_reduce.jsonl")
    assert [row["size"] for row in measured] == [1 << 10, 1 << 15, 1 << 20]
    assert all(row["in_place"]["busbw"] > 0 and row["in_place"]["wrong"] == 0 for row in measured)


def test_more_nodes_than_there_are_is_infeasible_soon_and_leaves_the_nodes_free(cluster: Cluster) -> None:
    began = time.monotonic()
    done = cluster.run("submit", "--", "bench", "--nodes", "3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "3 nodes with 1 CPU" in done.stdout
    assert time.monotonic() - began < 60
    eventually(lambda: cluster.run("status").stdout.count("0.0/1.0 CPU") == 2, 30)


def test_a_node_that_dies_ends_the_benchmark_with_a_failure_and_frees_the_others(cluster: Cluster) -> None:
    client = cluster.start("submit", "--", "bench", "--sizes", "64M", "--iterations", "2000")
    assert client.stdout is not None
    output = ""
    while "#wrong" not in output:
        line = client.stdout.readline()
        assert line, output
        output += line
    ranks = _rank_processes()
    assert len(ranks) == 2
    assert all(loopback for _, loopback in listeners.of(int(rank.name) for rank in ranks))
    began = time.monotonic()
    os.kill(int(ranks[0].name), signal.SIGKILL)
    rest, _ = client.communicate(timeout=90)
    assert client.returncode == 5, output + rest
    assert time.monotonic() - began < 30
    eventually(lambda: not _rank_processes(), 10)
    eventually(lambda: cluster.run("status").stdout.count("0.0/1.0 CPU") == 2, 30)


def _rank_processes() -> list[Path]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "cmdline").read_bytes().startswith(b"ray::RankActor"):
                    found.append(process)
            except OSError:  # ended meanwhile
                continue
    return found
