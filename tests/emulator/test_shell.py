"""A shell that `python -m emulator env` made, once its emulated cloud has ended or is up elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator import lifecycle
from emulator.machine.state import State
from emulator.rest import cloud_server
from tests.emulator.test_interruption import copied
from tests.support.processes import python
from tests.support.waiting import eventually


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A checkout beside this one, where nothing runs."""
    copy = copied(tmp_path / "checkout")
    yield copy
    State.of_checkout(copy).stop_all()


def run(checkout: Path, shell: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **shell, "PATH": shell["PATH"].partition(":")[0]}  # without a kubectl of the machine's
    return python("-m", *words, cwd=checkout, env=environment)


@pytest.mark.thorough
def test_a_command_says_whether_its_shells_cloud_has_ended_or_is_up_elsewhere(checkout: Path) -> None:
    state = State.of_checkout(checkout)
    shell = lifecycle.environment(state)
    again = 'eval "$(.venv/bin/python -m emulator env)"'

    ended = run(checkout, shell, "workloads", "runs", "list")
    assert ended.returncode == 8
    nothing = "Nothing of it is up: start it with `make demo` or `.venv/bin/python -m emulator up`, then type " + again
    assert ended.stderr.splitlines()[1].endswith(nothing)
    assert run(checkout, shell, "emulator", "status").returncode == 1

    state.spawn("kube-apiserver", ["sleep", "600"])  # of one that got other ports
    state.path("ports.json").write_text(f'{{"kube-apiserver": 1, "{cloud_server.NAME}": 2}}')
    moved = run(checkout, shell, "workloads", "runs", "list")
    assert moved.returncode == 8
    assert moved.stderr.splitlines()[1].endswith(f"It is up elsewhere now: type {again}")
    status = run(checkout, shell, "emulator", "status")
    assert (status.returncode, status.stdout.splitlines()[-1]) == (
        0,
        f"this shell is of an earlier emulated cloud; type {again}",
    )
    assert "earlier" not in run(checkout, lifecycle.environment(state), "emulator", "status").stdout


def test_the_status_of_a_cloud_of_which_a_part_has_ended_is_a_failure(checkout: Path) -> None:
    state = State.of_checkout(checkout)
    state.spawn("kube-apiserver", ["sleep", "600"])
    state.spawn(cloud_server.NAME, ["sh", "-c", "echo its last words"])
    eventually(lambda: not state.process(cloud_server.NAME))

    status = run(checkout, lifecycle.environment(state), "emulator", "status")

    assert status.returncode == 1
    assert "cloud-server, a part of the emulated cloud, ended by itself" in status.stdout
    assert "its last words" in status.stdout
