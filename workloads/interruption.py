"""SIGTERM, as `kill`, `timeout` and a service manager send it, ends a command just as Ctrl-C does.

SIGHUP, as a closed terminal sends it, ends the command and what it started on this machine; a submitted job goes on, as
after any lost connection.

Ray puts handlers of its own in place: one that leaves at once, then one that prints a stack trace and dies of SIGABRT.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from workloads.errors import EXIT_INTERRUPTED

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install() -> None:
    """Have SIGTERM do from now on what SIGINT does, whatever that is when it comes, and SIGHUP unwind the command."""
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, _leave)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back what the block made of the signals; it may run in any thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ALL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Let none of the signals cut short what follows, until `handlers_kept` puts them back."""
    for number in _ALL:
        signal.signal(number, signal.SIG_IGN)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell without job control starts what is in the background with SIGINT ignored
        handler = signal.default_int_handler
    handler(signal.SIGINT, frame)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell sends one, and the kernel another
    sys.exit(EXIT_INTERRUPTED)
