"""The gate before training: when it is asked, what it lets pass and what it says of what it does not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oasis_stack.pod_specs.gib import EXIT_BAD_FABRIC
from tests.support.command_line import parsed
from tests.support.stub_kubectl import OUTPUTS
from tests.workloads.nccl.test_thresholds import stage
from tests.workloads.nccl.test_verdict import ranks
from workloads import __main__ as command_line
from workloads import dry_run, errors
from workloads.cluster import session
from workloads.convnext.run import driver, preview, train
from workloads.convnext.run.run import Run
from workloads.environment import ClusterEnvironment
from workloads.errors import DataIntegrityError, FabricError, InfeasibleError, WorkloadError
from workloads.nccl import gate
from workloads.nccl.definitions.stages import RING, Stage
from workloads.nccl.ranks.driver import StoppedError
from workloads.nccl.ranks.failures import HungError
from workloads.nccl.results.measured import Measured
from workloads.storage import folders as storage

RDMA = OUTPUTS
TCP = replace(OUTPUTS, rdma_nics=0, machine_type="a2-highgpu-8g")
CPUS = replace(TCP, gpus_per_node=0, machine_type="")


def run_of(environment: ClusterEnvironment | None, *words: str) -> tuple[Run, dry_run.Settings]:
    args = parsed(train.add_train_arguments, "--run", "a", "--batch-size", "256", *words)
    place = session.Place(address=None if environment is None else "here", environment=environment)
    run = train.plan(args, place)
    return run, dry_run.explain(args, train.add_train_arguments, preview.of_run(args, run, place))


@pytest.mark.parametrize(
    ("environment", "words", "asked"),
    [
        (RDMA, ("--workers", "16"), True),
        (RDMA, ("--workers", "8:16"), True),
        (RDMA, ("--workers", "8"), False),
        (RDMA, ("--workers", "8", "--require-fabric"), True),
        (RDMA, ("--workers", "16", "--no-require-fabric"), False),
        (TCP, ("--workers", "16"), False),
        (TCP, ("--workers", "16", "--no-require-fabric"), False),
        (CPUS, (), False),
        (None, (), False),
    ],
)
def test_the_fabric_is_checked_where_it_was_promised_and_the_run_uses_it(
    environment: ClusterEnvironment | None, words: tuple[str, ...], asked: bool
) -> None:
    run, settings = run_of(environment, *words)
    assert (run.promise is not None) == asked
    typed = any("fabric" in word for word in words)
    stack = "variable OASIS_RDMA_NICS" if environment else "default"
    assert settings["require-fabric"] == (asked, "flag --require-fabric" if typed else stack)


@pytest.mark.parametrize(
    ("environment", "why"), [(TCP, "have no RDMA NICs"), (CPUS, "have no RDMA NICs"), (None, "RDMA is not promised")]
)
def test_a_check_of_what_nobody_promised_is_refused_with_one_message(
    environment: ClusterEnvironment | None, why: str
) -> None:
    with pytest.raises(InfeasibleError, match=f"--require-fabric was given; .*{why}") as refused:
        run_of(environment, "--workers", "16", "--require-fabric")
    assert refused.value.remedy == "Leave it out: there is no fabric to check."


def test_an_elastic_run_is_checked_between_the_nodes_of_its_fewest_and_most_workers() -> None:
    run, _ = run_of(RDMA, "--workers", "8:32")
    assert (run.nodes(run.least_workers), run.nodes(run.workers)) == (1, 4)
    assert run_of(CPUS, "--workers", "3")[0].nodes(3) == 3


def test_a_run_that_starts_on_a_few_gpus_is_checked_with_all_that_it_can_grow_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, _ = run_of(RDMA, "--workers", "4:16")
    asked: list[gate.Question] = []
    monkeypatch.setattr(gate, "admit", lambda question, say: asked.append(question))
    driver._check_fabric(run, RDMA)
    assert (asked[0].gpus_per_node, asked[0].ranks_per_node) == (8, 8)
    assert (asked[0].least_nodes, asked[0].most_nodes) == (1, 2)


def test_each_node_is_measured_alone_and_then_all_over_the_wire() -> None:
    alone, everyone = gate.rounds(3, ring=True)
    assert [one.nodes for one in alone] == [(0,), (1,), (2,)]
    assert [(one.nodes, one.algorithm) for one in everyone] == [((0, 1, 2), RING)]
    assert gate.rounds(1, ring=True) == [(Stage(name="all", nodes=(0,)),)]
    assert gate.rounds(2, ring=False)[1:] == [(Stage(name="all", nodes=(0, 1)),)]
    assert [one.algorithm for one in gate.rounds(2, ring=True)[-1]] == [RING]


def question(*folders: Path) -> gate.Question:
    return gate.Question(
        promise=replace(RDMA, rdma_nics=2),
        least_nodes=2,
        most_nodes=2,
        ranks_per_node=8,
        gpus_per_node=8,
        timeout=1,
        folders=tuple(map(storage.locate, folders)),
    )


def stages_measured(
    alone: float = 480, together: float = 372, logs: str = "made_gib_2_27_7", wrong: int = 0
) -> list[Measured]:
    """Two nodes alone and together, as fast as that at the largest size, with these logs."""
    found, size = [], max(gate.GPU_SIZES)
    for node, busbw in enumerate((480, alone)):
        one = stage(busbw, 1, size=size, hosts=(f"gke-a3u-{node}",) * 8, node_of_rank=(node,) * 8)
        of = Stage(name=f"node {node}", nodes=(node,))
        found.append(replace(one, stage=of, logs=ranks("made_node_nvls")))
    hosts = tuple(f"gke-a3u-{rank // 8}" for rank in range(16))
    both = stage(together, 2, RING, size, wrong, hosts=hosts)
    spread = {rank // 2 * 8 + rank % 2: text for rank, text in ranks(logs).items()}
    of = replace(both.stage, name="all, ring")
    return [*found, replace(both, logs=spread, stage=of)]


def test_a_sound_fabric_passes_and_is_shown_and_kept(tmp_path: Path) -> None:
    said: list[str] = []
    gate.conclude(question(tmp_path), stages_measured(), said.append)
    assert said[-1] == (
        "fabric, all, ring: 372 GB/s at 4 GiB, gIB with GPUDirect RDMA, 4 of 4 NICs carry channels, RING SIMPLE, "
        "16 channels, NVLS, gIB 1.1.1, NCCL 2.27.7+cuda12.9: pass"
    )
    assert [line.split(":")[0] for line in said] == ["fabric, node 0", "fabric, node 1", "fabric, all, ring"]
    assert {"all_reduce.txt", "all_reduce.jsonl"} <= {file.name for file in tmp_path.iterdir()}
    assert "NET/gIB/0/GDRDMA" in (tmp_path / "logs" / "all_reduce-all-ring-rank0.log").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logs": "made_one_nic_without_gpu_direct"}, ["node gke-a3u-1, NIC mlx5_1: It works without GPUDirect RDMA"]),
        (
            {"logs": "made_all_sockets", "together": 4},
            ["TCP sockets where gIB was promised", "4 GB/s of bus bandwidth"],
        ),
        (
            {"logs": "made_tuner_missing", "together": 250},
            ["all, ring: 250 GB/s of bus bandwidth; 300 must be"],
        ),
        (
            {"alone": 150},
            ["node 1: 150 GB/s of bus bandwidth; 432 must be", "node 1 (gke-a3u-1) is slow alone"],
        ),
    ],
)
def test_a_bad_fabric_is_refused_with_node_nic_and_remedy(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FabricError) as refused:
        gate.conclude(question(), stages_measured(**changes), lambda line: None)
    assert all(part in refused.value.problem for part in words), refused.value.problem
    assert "--no-require-fabric" in refused.value.remedy


def test_a_node_that_shows_fewer_nics_than_the_stack_promised_is_refused() -> None:
    asked = replace(question(), promise=replace(RDMA, rdma_nics=3))
    with pytest.raises(FabricError, match=r"node gke-a3u-1: 2 of 3 RDMA NICs appear in the logs: mlx5_0, mlx5_1\."):
        gate.conclude(asked, stages_measured(), lambda line: None)


def test_the_result_of_a_refusal_is_kept_and_the_message_says_where(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=re.escape(f"Tables and NCCL's logs: {tmp_path}.")):
        gate.conclude(question(tmp_path), stages_measured(logs="made_all_sockets"), lambda line: None)
    assert "Verdict              : fail" in (tmp_path / "all_reduce.txt").read_text()


def stopped(problem: str, *measured: Measured, logs: str = "", cause: BaseException | None = None) -> StoppedError:
    error = StoppedError(problem, "Run again.")
    error.measured, error.logs = measured, {"all, ring": {0: "", 9: logs}}
    error.__cause__ = cause
    return error


def test_a_check_that_stops_keeps_the_stages_before_it_and_says_what_they_show(tmp_path: Path) -> None:
    said: list[str] = []
    alone, slow, _ = stages_measured(alone=150)
    error = gate.stopped(question(tmp_path), stopped("Rank 9 died: lost.", alone, slow), said.append)
    assert isinstance(error, FabricError)  # for the node that is slow alone
    assert "failed before training: Rank 9 died: lost. node 1: 150 GB/s of bus bandwidth" in error.problem
    assert f"What there is of tables and NCCL's logs: {tmp_path}." in error.remedy
    assert [line.split(":")[0] for line in said] == ["fabric, node 0", "fabric, node 1", "fabric"]
    assert "# stopped before its end: Rank 9 died: lost." in (tmp_path / "all_reduce.txt").read_text()
    assert (tmp_path / "logs" / "all_reduce-all-ring-rank9.log").exists()


@pytest.mark.parametrize(
    ("logs", "cause", "fabric"),
    [
        (
            "a:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 (Recv) hca mlx5_3",
            None,
            True,
        ),
        ("", RuntimeError("ncclSystemError: System call failed"), True),
        ("", HungError("No answer from rank 9.", "Run again."), True),
        ("", RuntimeError("CUDA out of memory"), False),
        ("a:1:2 [0] NCCL WARN socket.cc:1 Connection closed by remote peer", RuntimeError("lost"), False),
    ],
)
def test_only_what_shows_the_network_or_a_gpu_at_fault_is_a_bad_fabric(
    logs: str, cause: BaseException | None, fabric: bool
) -> None:
    error = gate.stopped(question(), stopped("Rank 9 died: lost.", logs=logs, cause=cause), lambda line: None)
    assert isinstance(error, FabricError) == fabric
    assert error.exit_code == (9 if fabric else 5)
    assert ("--no-require-fabric" in error.remedy) == fabric


def test_an_interruption_is_one_still_once_what_there_is_is_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        gate.stopped(question(tmp_path), stopped("Interrupted.", cause=KeyboardInterrupt()), lambda line: None)
    assert (tmp_path / "logs" / "all_reduce-all-ring-rank9.log").exists()


def test_wrong_results_are_a_matter_of_data_and_not_of_speed() -> None:
    with pytest.raises(DataIntegrityError, match="6 elements of the results are wrong"):
        gate.conclude(question(), stages_measured(wrong=3), lambda line: None)


def test_a_machine_that_nobody_knows_passes_on_its_path_alone() -> None:
    nowhere = {"machine_type": ""}
    slow = [replace(one, conditions=replace(one.conditions, **nowhere)) for one in stages_measured(together=9)]
    said: list[str] = []
    gate.conclude(question(), slow, said.append)
    assert all(line.endswith("no verdict") for line in said)


def test_an_exit_code_means_one_thing_everywhere() -> None:
    assert FabricError.exit_code == EXIT_BAD_FABRIC == 9
    codes = {one.exit_code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, WorkloadError)}
    listed = command_line.EPILOG.partition("exit codes:")[2].split()
    assert {str(code) for code in codes} <= set(listed)
