"""Ctrl-C in every phase of `python -m emulator up`, and `down` during a demo, in a checkout beside this one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator import processes, ray_nodes
from emulator.go_modules import cache_directory
from emulator.state import CHECKOUT, State

pytestmark = pytest.mark.emulated

SOURCES = ("emulator", "oasis_stack", "workloads", "__main__.py", "Pulumi.yaml", "Pulumi.local.yaml")
PATIENCE_SECONDS = 180


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A checkout beside this one."""
    copy = tmp_path / "checkout"
    for name in SOURCES:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)
    yield copy
    State.of_checkout(copy).stop_all()


@pytest.fixture
def empty_cache(tmp_path: Path) -> Path:
    """A user's cache without built programs; Go's own caches are this user's, so that nothing is downloaded."""
    cache = tmp_path / "cache"
    (cache / "oasis").mkdir(parents=True)
    (cache / "oasis" / "go").symlink_to(cache_directory() / "go")
    return cache


@pytest.mark.parametrize("phase", ["starting the emulated cloud", "created          Cluster", "starting Ray's head"])
def test_an_interrupted_up_leaves_nothing_running_and_no_half_cloud(checkout: Path, phase: str) -> None:
    status, said = _interrupted_up(checkout, phase, dict(os.environ))

    assert status == 130, said
    assert processes.owned_by(checkout / ".oasis") == []
    assert {entry.name for entry in (checkout / ".oasis").iterdir()} <= {"lock", "logs", "results"}


def test_an_interrupted_build_ends_the_compiler_and_leaves_no_half_program(checkout: Path, empty_cache: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(empty_cache)}
    environment["PATH"] = os.pathsep.join(
        part for part in environment["PATH"].split(os.pathsep) if ".oasis" not in part
    )

    status, said = _interrupted_up(checkout, "] etcd: building", environment)

    assert status == 130, said
    assert processes.owned_by(checkout / ".oasis") == []
    assert list((empty_cache / "oasis" / "bin").rglob("*")) == []


def test_a_second_command_in_the_same_checkout_is_refused_and_down_ends_the_first(checkout: Path) -> None:
    first = _start(checkout, "up", dict(os.environ))
    try:
        _read_until(first, "starting the emulated cloud")
        second = _emulator(checkout, "up")
        assert second.returncode == 1
        assert f"`python -m emulator up` (process {first.pid}) is at work in this checkout" in second.stderr
        assert "make down" in second.stderr

        down = _emulator(checkout, "down")

        assert down.returncode == 0, down.stderr
        assert first.wait(PATIENCE_SECONDS) == 130
        assert processes.owned_by(checkout / ".oasis") == []
        assert _emulator(checkout, "status").returncode == 1
    finally:
        first.kill()
        first.communicate()


def test_a_second_demo_is_refused_while_one_trains_and_down_leaves_no_process_of_it(checkout: Path) -> None:
    first = _start(checkout, "demo", dict(os.environ))
    try:
        _read_until(first, "submitted; Ctrl-C stops it")
        second = _emulator(checkout, "demo")
        assert second.returncode == 1
        assert f"`make demo` (process {first.pid}) is at work in this checkout" in second.stderr
        time.sleep(5)  # the job's processes come

        down = _emulator(checkout, "down")

        assert down.returncode == 0, down.stderr
        assert "interrupted `make demo`" in down.stdout
        said, _ = first.communicate(timeout=PATIENCE_SECONDS)
        assert first.returncode == 130, said
        assert "ending everything" in said
        assert processes.owned_by(checkout / ".oasis") == []
        assert _mentioning(str(checkout), str(ray_nodes.session_directory(checkout / ".oasis"))) == []
    finally:
        first.kill()
        first.communicate()


def _mentioning(*words: str) -> list[str]:
    """Command lines of running processes with one of the words; Ray's carry no mark but their folder's name."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if any(word in line for word in words)]


def _interrupted_up(checkout: Path, phase: str, environment: dict[str, str]) -> tuple[int, str]:
    """Start `up`, press Ctrl-C when it says `phase`; its exit status and what it said."""
    process = _start(checkout, "up", environment)
    try:
        said = _read_until(process, phase)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
        rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, said + rest
    finally:
        process.kill()
        process.communicate()


def _start(checkout: Path, command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "emulator", command],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _read_until(process: subprocess.Popen[str], phase: str) -> str:
    said = ""
    for line in process.stdout or ():
        said += line
        if phase in line:
            return said
    raise AssertionError(f"it never said {phase!r}:\n{said}")


def _emulator(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "emulator", *arguments]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
