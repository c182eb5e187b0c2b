"""SIGTERM, as `kill`, `timeout` and a service manager send it, ends a command just as Ctrl-C does.

Ray installs handlers of its own: one that exits at once, then one that prints a stack trace and dies of SIGABRT. A
process that SIGKILL ends can do nothing for its children: with `end_with` they end when it does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_BOTH = (signal.SIGINT, signal.SIGTERM)

_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def install() -> None:
    """Have SIGTERM do from now on what SIGINT does, whatever that is when it comes."""
    signal.signal(signal.SIGTERM, _as_ctrl_c)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back what the block made of the two signals; it may run in any thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _BOTH}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Let neither signal cut short what follows, until `handlers_kept` puts them back."""
    for number in _BOTH:
        signal.signal(number, signal.SIG_IGN)


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, however it does; end it now if that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before this call
        sys.exit()


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # a shell without job control starts what is in the background with SIGINT ignored
        handler = signal.default_int_handler
    handler(signal.SIGINT, frame)
