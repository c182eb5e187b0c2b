"""The gate before training on a real Ray that promises RDMA and has gloo: refused between nodes, passed on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from tests.support.waiting import eventually
from workloads.errors import FabricError

pytestmark = pytest.mark.ray

TRAIN = ("train", "--data", "synthetic", "--epochs", "1", "--batch-size", "64")


@pytest.fixture
def submit(tmp_path: Path) -> tuple[str, ...]:
    """How a job is submitted to a stack that says that its nodes have eight RDMA NICs."""
    file = tmp_path / "runtime-env.yaml"
    file.write_text('env_vars: {OASIS_RDMA_NICS: "8"}\n')
    return ("submit", "--runtime-env", str(file), "--results", str(tmp_path), "--")


def fabric(cluster: Cluster, run: str) -> list[Path]:
    """The results of the gate that were kept in the runs bucket."""
    folder = cluster.bucket(cluster.environment.runs_uri) / run
    assert folder.is_dir()
    return sorted((folder / "results" / "fabric").glob("*/all_reduce.txt"))


def test_gloo_between_nodes_where_gib_was_promised_is_refused_and_leaves_nothing(
    cluster: Cluster, submit: tuple[str, ...]
) -> None:
    done = cluster.run(*submit, *TRAIN, "--run", "refused", "--require-fabric")
    assert done.returncode == FabricError.exit_code, done.stdout + done.stderr
    assert "fabric, node 0: " in done.stdout and "fabric, all: " in done.stdout
    assert "The fabric is not what the stack promised. all: There is no NCCL log" in done.stdout + done.stderr
    assert "or train all the same with --no-require-fabric" in done.stdout + done.stderr
    (table,) = fabric(cluster, "refused")
    assert "# Verdict              : fail" in table.read_text()
    assert not (table.parents[3] / "checkpoints").exists()
    eventually(lambda: cluster.run("status").stdout.count("0 of 1 CPU") == 2)


def test_a_run_that_needs_no_fabric_passes_and_trains(cluster: Cluster, submit: tuple[str, ...]) -> None:
    words = (*TRAIN, "--run", "passed", "--require-fabric", "--workers", "1")
    done = cluster.run(*submit, *words, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index("fabric, all: nothing to transfer") < done.stdout.index("trained; ending the workers")
    assert len(fabric(cluster, "passed")) == 1
