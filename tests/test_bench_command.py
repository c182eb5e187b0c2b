"""What `bench` does with the rows it is given: where they go, and that a wrong result is never a success."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.stub_kubectl import OUTPUTS
from tests.test_bandwidth import row
from workloads import __main__ as command_line
from workloads import session, storage
from workloads.errors import UsageError
from workloads.nccl import all_reduce
from workloads.storage import locate

RANK = {"host": "a", "backend": "gloo", "accelerator": "", "versions": {}, "variables": {}}


asked: list[tuple[int, bool]] = []
"""The largest size that the cluster was asked to measure, and whether it may leave out what does not fit."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows that the cluster 'measures'; no Ray is started."""
    found: list[Any] = [row()]
    asked.clear()

    def run(layout: Any, plan: Any, sizes: Any, shorten: bool, wait: Any, say: Any, begin: Any, show: Any) -> list[Any]:
        asked.append((sizes[-1], shorten))
        begin([RANK] * layout.ranks)
        for one in found:
            show(one)
        return found

    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(all_reduce, "run", run)
    monkeypatch.setattr(session, "connect", lambda *_, **__: contextlib.nullcontext())
    return found


def test_a_wrong_result_is_exit_code_6_and_the_table_that_shows_it_is_kept(
    measured: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.append(row(wrong=3))
    assert command_line.main(["bench", "--results", str(tmp_path), "--name", "bad"]) == 6
    printed = capsys.readouterr()
    assert "6 elements" in printed.err
    assert "# Out of bounds values : 6 FAILED" in (tmp_path / "bad" / "all_reduce.txt").read_text()


def test_a_right_result_is_exit_code_0_and_three_files(measured: list[Any], tmp_path: Path) -> None:
    assert command_line.main(["bench", "--results", str(tmp_path), "--name", "good"]) == 0
    assert len(list((tmp_path / "good").iterdir())) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sizes", "64MB"], 2, "64MB"),
        (["--sizes", "1:2"], 2, "Start --sizes at 4"),
        (["--name", "../up"], 2, "--name is '../up'; a name has up to 63 of"),
        (["--nodes", "0"], 2, "--nodes is 0"),
        (["--warmup", "0"], 2, "--warmup"),
        (["--nodes", "2"], 3, "an embedded Ray is one node"),
    ],
)
def test_bad_input_is_answered_before_anything_starts(
    measured: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert command_line.main(["bench", *arguments]) == code
    assert words in capsys.readouterr().err


def test_without_sizes_gpus_are_measured_to_8_gib_as_memory_allows_and_cpus_to_64_mib(
    measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = ["--results", str(tmp_path), "--name", "a"]
    assert command_line.main(["bench", *results]) == 0
    assert command_line.main(["bench", *results, "--sizes", "1K:16G:2"]) == 0
    monkeypatch.setattr(session, "prepare", lambda _: session.Place(address="127.0.0.1:1", environment=OUTPUTS))
    monkeypatch.setattr(storage, "locate", lambda place: locate(str(place).replace("gs:/", str(tmp_path))))
    assert command_line.main(["bench", *results]) == 0
    assert asked == [(64 << 20, True), (16 << 30, False), (8 << 30, True)]


def test_sizes_beyond_the_memory_are_left_out_or_refused_before_anything_is_measured() -> None:
    sizes = [1 << 20, 1 << 30, 8 << 30]
    assert all_reduce.fitting(sizes, 2 << 30, shorten=True) == sizes[:2]
    assert all_reduce.fitting(sizes, 8 << 30, shorten=False) == sizes
    for room, shorten in ((2 << 30, False), (1 << 10, True)):
        with pytest.raises(UsageError, match=r"Two buffers of 8 GiB do not fit"):
            all_reduce.fitting(sizes, room, shorten)
