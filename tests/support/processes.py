"""What runs on this machine, as tests and benchmarks look for it and end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil

from emulator.machine import processes
from emulator.machine.state import CHECKOUT
from tests.support.waiting import eventually


def write_program(file: Path, script: str, interpreter: str = "/bin/sh") -> Path:
    """Make a program of a script, with its folder; its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!{interpreter}\n{script}\n")
    file.chmod(0o755)
    return file


def usual_variables(**more: str) -> dict[str, str]:
    """This process's environment and more, without what Ray, the stack, W&B, emulated storage or pytest would read."""
    foreign = ("RAY_", "OASIS_", "WANDB_", "STORAGE_", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | more


def python(
    *words: str, within: Sequence[str] = (), cwd: Path = CHECKOUT, timeout: float = 400, **more: Any
) -> CompletedProcess[str]:
    """Python, run to its end; by the command `within`, if there is one."""
    command = [*within, sys.executable, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, **more)


def begun(*words: str, cwd: Path = CHECKOUT, **more: Any) -> subprocess.Popen[str]:
    """Python, left running; all that it says comes by one pipe."""
    command = [sys.executable, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, **more)


def running(*words: str) -> dict[int, str]:
    """Command lines, with a space after each argument, in which one of these occurs; by process id, without our own."""
    others = (process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid())
    found = {process.pid: "".join(f"{word} " for word in process.info["cmdline"] or ()) for process in others}
    return {pid: line for pid, line in found.items() if any(word in line for word in words)}


def descendants(pid: int) -> dict[int, str]:
    """Command lines of everything below a process; empty for what has ended and is still known."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return {child.pid: command(child.pid) for child in psutil.Process(pid).children(recursive=True)}
    return {}


def command(pid: int) -> str:
    """The command line; empty for a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def kill(command: subprocess.Popen[Any]) -> None:
    """Kill a command and all that it started, and wait until all of them have ended, which takes a killed process a
    moment: for as long it holds what it has locked."""
    family = (*processes.descendants(command.pid), command.pid)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    command.wait()
    eventually(lambda: not any(map(processes.start_time, family)))
