"""Every command whose output goes to a reader that leaves, as `... | head`: quiet, and with the status of SIGPIPE."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from emulator.machine.state import CHECKOUT, State
from tests.support import bench_results, fake_ray
from tests.support.processes import python
from workloads.nccl.results import report
from workloads.storage.folders import locate

# One of each package and way to print; what goes the same way takes seconds more.
COMMANDS = (
    "workloads --help",
    "workloads train --dry-run --json",
    "workloads bench predict --model convnext-base --nodes 1,2,4",
    "oasis_stack plan --stack local",
    "emulator status",
    "benchmarks.platform --help",
)
MORE_COMMANDS = (
    "workloads train --help",
    "workloads train --dry-run",
    "workloads tune --space workloads/tune/space.yaml --dry-run",
    "workloads bench --dry-run",
    "workloads doctor",
    "workloads explain tests/workloads/nccl/test_faults.py",
    "oasis_stack --help",
    "emulator --help",
    "emulator up --help",
    "benchmarks.scaling --help",
)
OF_A_STACK = ("workloads status", "workloads submit -- echo hello")
MORE_OF_A_STACK = ("workloads jobs list", "workloads jobs logs none", "workloads submit --dry-run -- train")


def thorough(commands: Sequence[str]) -> list[Any]:
    return [pytest.param(command, marks=pytest.mark.thorough) for command in commands]


def without_a_reader(arguments: Sequence[str], merged: bool = False) -> tuple[int, str]:
    """Exit status, and what came on standard error, of a program of Python's whose standard output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=CHECKOUT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer if merged else subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr or ""


@pytest.mark.thorough
@pytest.mark.parametrize("command", [*COMMANDS, *thorough(MORE_COMMANDS)])
def test_a_reader_that_leaves_ends_a_command_quietly(command: str) -> None:
    assert without_a_reader(["-m", *command.split()]) == (141, "")


@pytest.mark.thorough
@pytest.mark.parametrize("command", [*OF_A_STACK, *thorough(MORE_OF_A_STACK)])
def test_a_reader_that_leaves_ends_a_command_on_a_stack_quietly(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_ray.standing(tmp_path, monkeypatch):
        status, said = without_a_reader(["-m", *command.split()])

    assert status == 141, said
    assert "Traceback" not in said and "Broken pipe" not in said


def test_a_reader_that_leaves_ends_a_list_of_runs_quietly(tmp_path: Path) -> None:
    (tmp_path / "mine" / "journal").mkdir(parents=True)
    (tmp_path / "mine" / "journal" / "1").write_text("{}")
    runs = ["-m", "workloads", "runs", "--storage", str(tmp_path)]
    assert without_a_reader([*runs, "list"]) == (141, f"runs in {tmp_path}\n")
    assert without_a_reader([*runs, "show", "mine"]) == (141, "")


@pytest.mark.thorough
def test_a_reader_that_leaves_ends_a_comparison_quietly(tmp_path: Path) -> None:
    report.write([locate(tmp_path)], bench_results.run(2))
    assert without_a_reader(["-m", "workloads", "bench", "compare", str(tmp_path), str(tmp_path)]) == (141, "")


def test_a_message_of_failure_that_nobody_reads_is_no_second_failure() -> None:
    assert without_a_reader(["-m", "workloads", "train", "--dry-run", "--recipe", "none"], merged=True)[0] == 141


def test_a_closed_socket_is_an_error_and_no_end_of_the_output() -> None:
    program = """
import socket, sys
from workloads import closed_pipe
def main():
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.sendall(b"x")
sys.exit(closed_pipe.run(main))
"""
    done = python("-c", program)

    assert done.returncode == 1
    assert "BrokenPipeError" in done.stderr


@pytest.mark.thorough
def test_an_emulator_whose_report_nobody_reads_is_taken_down(tmp_path: Path) -> None:
    state = State(tmp_path / ".oasis")
    program = f"""
import sys
from pathlib import Path
from emulator import build, closed_pipe, lifecycle
from emulator.machine.state import State
state = State(Path({str(state.directory)!r}))
build.provide = lambda *_: state.spawn("part", ["sleep", "600"])
def main():
    with lifecycle.started(state, lambda line: state.processes() and print(line, flush=True)):
        raise AssertionError("started")
sys.exit(closed_pipe.run(main))
"""
    try:
        assert without_a_reader(["-c", program]) == (141, "")
        assert state.processes() == []
    finally:
        state.stop_all()


def test_each_package_has_the_same_answer() -> None:
    texts = {(CHECKOUT / folder / "closed_pipe.py").read_text() for folder in ("emulator", "workloads")}
    texts.add((CHECKOUT / "oasis_stack" / "command_line" / "closed_pipe.py").read_text())
    assert len(texts) == 1
