"""What all-reduce must reach, and what is said of a stage: pass, fail, or nothing where nothing is known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support import bench_results
from tests.workloads.nccl.test_verdict import read
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.logs.verdict import Verdict
from workloads.nccl.results import thresholds
from workloads.nccl.results.measured import Measured
from workloads.nccl.results.thresholds import MACHINES, judge

A3_ULTRA = "a3-ultragpu-8g"
GIB = 1024**3


def stage(
    busbw: float, nodes: int, algorithm: str = "", size: int = 4 * GIB, wrong: int = 0, **changes: Any
) -> Measured:
    """One stage that reaches so many GB/s at its only size."""
    under = dataclasses.replace(bench_results.conditions(nodes), **changes)
    factor = 2 * (under.ranks - 1) / under.ranks
    timing = bench_results.timing(size * factor / (busbw * 1e9), under.ranks, wrong=wrong)
    row = bench_results.row(under, size, timing, timing)
    of = Stage(name="all", nodes=tuple(range(nodes)), algorithm=algorithm)
    return Measured(stage=of, conditions=under, rows=(row,), links=(), logs={})


def sound(algorithm: str = "RING") -> Verdict:
    return dataclasses.replace(read("made_gib_2_27_7"), algorithm=algorithm)


@pytest.mark.parametrize(
    ("busbw", "nodes", "forced", "chosen", "outcome"),
    [
        (482, 1, "", "NVLS", "pass"),  # stas00/ml-engineering, 8x H200, 16 GiB
        (480, 1, "", "NVLS", "pass"),  # Azure ND H200 v5, 8 GB
        (367.6, 1, "", "RING", "fail"),  # the same machine with NVLS off
        (365.8, 4, "", "RING", "pass"),  # NVIDIA/nccl-tests issue 309
        (364.9, 4, "RING", "RING", "pass"),  # AWS p5en
        (372, 2, "RING", "RING", "pass"),
        (331.8, 2, "RING", "RING", "pass"),  # all-gather on two A3 Ultra nodes over gIB, skypilot-org/skypilot
        (290, 2, "RING", "RING", "fail"),  # seven of eight NICs of those
        (100, 2, "RING", "RING", "fail"),  # what Google's Cluster Toolkit lets pass
        (4, 2, "", "NVLS_TREE", "fail"),  # TCP, whatever the algorithm
        (470, 2, "", "NVLS_TREE", "no verdict"),  # NVIDIA/nccl-tests issue 309: more than the wire
        (470, 2, "", "", "no verdict"),
        (368, 1, "RING", "RING", "no verdict"),  # the same machine, as it was told to
        (290, 2, "TREE", "TREE", "no verdict"),
        (310.1, 4, "NVLS_TREE", "NVLS_TREE", "no verdict"),  # AWS p5en, sound, with NVLSTree forced
    ],
)
def test_published_figures_are_judged_as_their_publishers_do(
    busbw: float, nodes: int, forced: str, chosen: str, outcome: str
) -> None:
    found = judge(stage(busbw, nodes, forced), sound(chosen))
    assert found.outcome == outcome, found.reasons
    assert found.busbw == pytest.approx(busbw)
    assert found.reasons


@pytest.mark.parametrize(
    "one",
    [
        stage(700, 2, "RING", machine_type="a4-highgpu-8g"),
        stage(700, 2, "RING", machine_type=""),
        stage(90, 2, "RING", size=GIB),
        stage(90, 2, "RING", op="all_gather"),
        stage(0.1, 2, backend="gloo"),
        stage(90, 2, "RING", ranks=8),
    ],
)
def test_what_nobody_has_published_gets_no_verdict(one: Measured) -> None:
    found = judge(one, sound())
    assert (found.outcome, found.busbw) == ("no verdict", None)
    assert len(found.reasons) == 1


def test_a_wrong_path_fails_however_fast_it_is_and_on_any_machine() -> None:
    broken = read("made_one_rank_on_sockets")
    for machine_type in (A3_ULTRA, ""):
        found = judge(stage(390, 2, "RING", machine_type=machine_type), broken)
        assert found.outcome == "fail"
        assert any("node gke-a3u-1, rank 3" in reason for reason in found.reasons)


def test_wrong_results_fail_on_any_machine() -> None:
    found = judge(stage(390, 2, "RING", wrong=3, machine_type=""), None)
    assert (found.outcome, found.reasons) == ("fail", ("6 elements of the results are wrong.",))


def test_a_slow_node_without_nvls_says_so() -> None:
    without = dataclasses.replace(sound(), nvls=False)
    assert "NVLS was not available" in judge(stage(367, 1), without).reasons[0]


@pytest.mark.parametrize(("nodes", "words"), [(2, "with a third node"), (3, "The stages of two nodes")])
def test_slow_nodes_are_told_apart_by_what_was_not_just_measured(nodes: int, words: str) -> None:
    assert words in judge(stage(100, nodes, "RING"), sound()).reasons[0]


def test_the_lines_of_a_plot_are_the_numbers_that_judge_and_are_drawn_only_where_they_hold() -> None:
    for nodes in (1, 2):
        limit, failing, *target = thresholds.references(bench_results.conditions(nodes))
        case = MACHINES[A3_ULTRA].several if nodes > 1 else MACHINES[A3_ULTRA].one
        assert (limit.gigabytes_per_second, failing.gigabytes_per_second) == (case.limit, case.failing)
        assert case.failing < case.expected <= case.limit
        assert [line.gigabytes_per_second for line in target] == ([380] if nodes > 1 else [])
    for changes in ({"op": "all_gather"}, {"backend": "gloo"}, {"machine_type": "a4-highgpu-8g"}, {"machine_type": ""}):
        assert thresholds.references(dataclasses.replace(bench_results.conditions(2), **changes)) == []
