"""Advance notice of the end of a run's nodes: Ray's drain of a node, and the end of a node's run duration.

Ray drains a node whose `ray start` gets SIGTERM, which is how a pod learns of a preemption; the drain has a deadline.
Ray Train could tell each rank too, but later, and each query is a collective of all ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from workloads.cluster import autoscaler
from workloads.environment import MAX_RUN_VARIABLE

POLL_SECONDS = 0.5
"""Interval between checks of Ray's drains. Spot gives 15 seconds in all; a check takes about a millisecond."""

_asked = threading.Event()
_answered = threading.Event()


def run_until(variables: Mapping[str, str] = os.environ, uptime: Path = Path("/proc/uptime")) -> float | None:
    """End of this node's run duration, unix time; None without a limit.

    Counted from the start of the kernel, some seconds after that of the machine: far less than the margin of a
    checkpoint before the deadline. A pod sees the uptime of its node (proc(5): it is not part of a namespace).

    Args:
        variables: environment variables.
        uptime: file whose first number is the seconds since the node's start.
    """
    try:
        limit = float(variables.get(MAX_RUN_VARIABLE) or 0)
    except ValueError:
        return None
    return time.time() - float(uptime.read_text().split()[0]) + limit if limit > 0 else None


class Notice:
    """Watches, in a thread of the rank that saves, whether a node of the run is about to end."""

    def __init__(self, nodes: Collection[str]) -> None:
        """Start watching.

        Args:
            nodes: Ray's ids of all nodes of the run.
        """
        self._nodes = frozenset(nodes)
        self._deadline: float | None = None
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="preemption-notice", daemon=True).start()

    @property
    def deadline(self) -> float | None:
        """Unix time at which the first of the nodes ends, infinite if it has no known time; None while all stay."""
        return self._deadline

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            going = [deadline for node, deadline in autoscaler.draining().items() if node in self._nodes]
            self._deadline = min(going, default=None)


def ask() -> None:
    """Ask the rank in this process to save at its next step. Called by the controller, before it ends the workers."""
    _answered.clear()
    _asked.set()


def asked() -> bool:
    """True if the controller has asked and has no answer yet."""
    return _asked.is_set()


def answer(*, saved: bool) -> None:
    """Tell the controller that the save it asked for is done, or cannot be done now; it may ask again."""
    _asked.clear()
    if saved:
        _answered.set()


def answered() -> bool:
    """True if the save that the controller asked for is done."""
    return _answered.is_set()
