"""A measurement in a process of its own: a failure there becomes its result, and the next one can be measured."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from benchmarks.harness.figures import Record
from workloads.errors import first_line
from workloads.interruption import end_with

KILL_SECONDS = 10.0
"""Longest wait for a killed process: one in a broken GPU's driver may never end."""


def measured_apart(measure: Callable[..., Record], *arguments: object, seconds: float) -> Record | None:
    """Run a function in a fresh process, which has ended on return, with all that it started.

    Args:
        measure: the function; a fresh process can import it.
        arguments: the function's arguments.
        seconds: how long it may take.

    Returns:
        Its result; `failed`, with a one-line reason, if it raises or its process dies; None if it takes longer.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(os.getpid(), theirs, measure, *arguments))
    with ours, contextlib.suppress(EOFError, OSError):
        try:
            process.start()
            theirs.close()  # while this end is open, the death of the process goes unnoticed
            return ours.recv() if ours.poll(seconds) else None
        except EOFError:
            process.join(KILL_SECONDS)  # it is ending by itself: its own exit code says more than that it was killed
            raise
        finally:
            _end(process)
    code = process.exitcode
    how = signal.strsignal(-code) if code and code < 0 else f"exit code {code}"
    return {"failed": f"its process died ({how}); the kernel's log says whether memory had ended"}


def _measure(parent: int, to: Connection, measure: Callable[..., Record], *arguments: object) -> None:
    end_with(parent)
    os.setsid()  # the parent handles Ctrl-C, and everything started here can be ended together
    try:
        found = measure(*arguments)
    except Exception as error:
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {first_line(error)}"}
    to.send(found)


def _end(process: BaseProcess) -> None:
    if process.pid:
        with contextlib.suppress(ProcessLookupError):  # it does not lead a group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join(KILL_SECONDS)
