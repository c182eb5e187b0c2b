"""What runs on this machine, as tests and benchmarks look for it and end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
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


def python(*words: str, before: Sequence[str] = (), **how: Any) -> subprocess.CompletedProcess[str]:
    """Python with these words, run to its end in the checkout; `how` is what else `subprocess.run` takes.

    Args:
        before: words of the command that runs it.
    """
    usual: dict[str, Any] = {"cwd": CHECKOUT, "capture_output": True, "text": True, "timeout": 600}
    return subprocess.run([*before, sys.executable, *words], **(usual | how))


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
