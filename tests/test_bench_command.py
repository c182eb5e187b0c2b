"""What `bench` does with the rows it is given: where they go, and that a wrong result is never a success."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.test_bandwidth import row
from workloads import __main__ as command_line
from workloads import session
from workloads.nccl import all_reduce

RANK = {"host": "a", "backend": "gloo", "accelerator": "", "versions": {}, "variables": {}}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows that the cluster 'measures'; no Ray is started."""
    found: list[Any] = [row()]

    def run(layout: Any, plan: Any, sizes: Any, wait: Any, say: Any, begin: Any, show: Any) -> list[Any]:
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
