"""The loop under every wait: bounded, with progress, and an error that says what is still missing and what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from oasis_stack.live_state import NotAnswering


class WaitError(Exception):
    """What was waited for did not come in time."""


def until_none(subject: str, remaining: Callable[[], Sequence[str]], minutes: float, remedy: str) -> None:
    """Ask `remaining` for what is still missing (or still there) until it answers with nothing.

    Raises:
        WaitError: after `minutes`, naming what remains, and `remedy`.
        Refused: at once, where asking again would not help.
    """
    start, pause = time.monotonic(), 0.1
    told, told_at = [""], start
    while True:
        try:
            left = list(remaining())
        except NotAnswering as failure:
            left = [str(failure)]
        if not left:
            return
        now = time.monotonic()
        if now - start >= minutes * 60:
            raise WaitError(f"{subject}: after {minutes:g} minutes still {', '.join(left)}. {remedy}")
        if left != told or now - told_at >= 60:
            told, told_at = left, now
            say(f"{subject}: {', '.join(left)} ({now - start:.0f} s of at most {minutes:g} min)")
        time.sleep(min(pause, start + minutes * 60 - now))
        pause = min(pause * 1.5, 5.0)


def say(text: str) -> None:
    """Show progress."""
    # The engine shows a provider's standard error as progress; `pulumi.log` has no engine to talk to in that process.
    print(text, file=sys.stderr, flush=True)
