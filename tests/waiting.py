"""Waiting for what others do in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    """Return once it holds; fails with the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s the answer is still {answer!r}"
        time.sleep(0.1)
