"""Waiting for what others do in their own time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def eventually(condition: Callable[[], object], seconds: float = 300) -> None:
    """Return once it holds; fails with the last answer, after a time that only a machine that is far too busy takes."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s the answer is still {answer!r}"
        time.sleep(0.1)


def read_until(process: subprocess.Popen[str], words: str, seconds: float = 900) -> str:
    """What a process says up to the end of the line with these words; it is killed where it takes longer than that."""
    said: list[str] = []
    with _killed_after(process, seconds):
        for line in process.stdout or ():
            said.append(line)
            if words in line:
                return "".join(said)
    last = "".join(said[-40:])
    raise AssertionError(f"it ended with {process.wait()} and never said {words!r}; its last lines:\n{last}")


def read_rest(process: subprocess.Popen[str], seconds: float = 900) -> str:
    """What a process says from there to its end; it is killed where it takes longer than that.

    `communicate` with a timeout passes over the lines that came together with the one that was waited for.
    """
    assert process.stdout is not None
    with _killed_after(process, seconds):
        rest = process.stdout.read()
    process.wait()
    return rest


@contextmanager
def _killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Kill a process if the block takes longer, with its group if it leads one, which may hold its output open."""
    leads = os.getpgid(process.pid) == process.pid
    end = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL) if leads else process.kill())
    end.start()
    try:
        yield
    finally:
        end.cancel()
