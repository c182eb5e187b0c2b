"""Trials that are kept between invocations of a benchmark, and how one ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks import collectives, lifecycles
from benchmarks.harness.command import conclude, exit_code
from benchmarks.harness.trials import Trials
from emulator.machine.state import CHECKOUT
from tests.emulator.provider_client import Failed
from workloads.errors import EXIT_INTERRUPTED

MEASURING = """
import signal, time
from benchmarks.harness import command
def main():
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("cleaned up", flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
command.run(main)
"""
"""As a shell without job control starts it in the background: with SIGINT ignored."""


def test_a_mistyped_part_costs_no_kept_trial_and_fresh_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials(tmp_path / "trials.jsonl")
    trials.keep("kills", 0, {"seconds": 1.0})
    monkeypatch.setattr(collectives, "TRIALS", trials)
    monkeypatch.setattr(collectives, "measure", lambda given: None)
    results = ["--results", str(tmp_path / "collectives.json")]

    with pytest.raises(SystemExit):
        collectives.main([*results, "--fresh", "kils"])
    assert "no such part: kils; there are " in capsys.readouterr().err
    assert [record["part"] for record in trials.kept()] == ["kills"]

    collectives.main([*results, "--fresh", "kills"])
    assert trials.kept() == []


@pytest.mark.thorough
def test_of_one_pair_there_are_figures_and_of_lives_that_all_failed_what_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ratio,) = collectives.PARTS["overhead"]([{"bytes": 16 << 20, "ratios": [1.25], "seconds": 0.01}]).values()
    assert ratio["ratio"]["quartiles"] == [1.25]

    def resumed(command: object) -> NoReturn:
        raise Failed("refused")

    monkeypatch.setattr(lifecycles, "resumed", resumed)
    with lifecycles.at_once():
        found, wrong = lifecycles.interrupted(tmp_path, 1, seed=1)
    assert found["not whole"] == 1 and wrong[0].endswith("refused")


def test_figures_are_kept_if_their_reader_leaves_before_the_end(tmp_path: Path) -> None:
    """As with `| head`."""
    results = tmp_path / "figures.json"
    program = (
        "import sys, pathlib; from benchmarks.harness import command; "
        "command.run(lambda: command.conclude(pathlib.Path(sys.argv[1]), {'lives': [0] * 100_000}))"
    )
    words = [sys.executable, "-c", program, str(results)]
    with subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout
        benchmark.stdout.readline()
        benchmark.stdout.close()
    assert benchmark.returncode == 141
    assert len(json.loads(results.read_text())["lives"]) == 100_000


def test_figures_that_cannot_be_written_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    results = tmp_path / "file" / "figures.json"
    assert exit_code(lambda: conclude(results, {"lives": 7})) == 8
    said = capsys.readouterr()
    assert json.loads(said.out) == {"lives": 7}
    assert said.err.splitlines()[0] == f"error: {results} cannot be written: File exists."


def test_a_part_of_the_lifecycles_is_kept_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycles, "legal_stacks", lambda *_: ({"tried": 1000}, []))
    monkeypatch.setattr(lifecycles, "ladders", interrupted)
    results = tmp_path / "lifecycles.json"
    with pytest.raises(KeyboardInterrupt):
        lifecycles.main(["--results", str(results)])
    assert json.loads(results.read_text())["legal stacks"] == {"tried": 1000}


def test_a_benchmark_that_is_terminated_cleans_up_also_in_the_background() -> None:
    command = [sys.executable, "-c", MEASURING]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout and benchmark.stdout.readline() == "begun\n"
        benchmark.terminate()
        assert benchmark.stdout.read() == "cleaned up\n"
    assert benchmark.returncode == EXIT_INTERRUPTED
