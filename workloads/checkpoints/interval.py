"""The schedule of checkpoints: after a fixed or Young's interval, and before the node's run duration ends.

The interval counts from state to COMMIT, so a save starts early by its own duration: a kill costs one interval and a
step.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

DEADLINE_MARGIN = 300.0
"""Seconds before the node's end by which its last due checkpoint must be committed."""

FIRST_SECONDS = 60.0
"""Interval until a save has been measured: Young's formula needs its cost, and a run's first save begins at once."""

SHORTEST, LONGEST = 10.0, 3600.0
"""Bounds of an interval by Young's formula; the longest limits what a wrong `failure_hours` can cost."""

RETRY_SECONDS = 60.0
"""Longest wait after a failed save."""

_MEASURED = 5
"""Saves whose median counts as the cost of a save: one slow answer of the storage must not stretch the interval."""


def young(save_seconds: float, failure_hours: float) -> float:
    """The interval that loses the least time to saves and failures together, sqrt(2 * save * time between failures).

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9),
    1974, doi:10.1145/361147.361115.

    Args:
        save_seconds: what one save costs the training, above 0.
        failure_hours: expected time between failures of the whole job, above 0.

    Returns:
        Seconds between saves.
    """
    return math.sqrt(2 * save_seconds * failure_hours * 3600)


class Schedule:
    """Says when to save. Times are seconds on the same clock as `deadline`, so unix time."""

    def __init__(self, checkpoint_seconds: float, failure_hours: float, deadline: float | None) -> None:
        """Nothing is due yet; the interval counts from the first question.

        Args:
            checkpoint_seconds: longest time between checkpoints; 0 for Young's formula.
            failure_hours: expected time between failures of the whole job, for that formula.
            deadline: when the node's run duration ends, unix time; None if it has no end.
        """
        self._fixed, self._failure_hours, self._deadline = checkpoint_seconds, failure_hours, deadline
        self._costs: deque[float] = deque(maxlen=_MEASURED)
        self._longest_save = self._longest_step = 0.0
        self._state: float | None = None  # when the newest checkpoint's state was the current one
        self._asked: float | None = None
        self._tried: float | None = None

    @property
    def interval(self) -> float:
        """Seconds from one committed state to the next COMMIT, as far as known so far."""
        if self._fixed:
            return self._fixed
        if not self._costs:
            return FIRST_SECONDS
        return min(max(young(statistics.median(self._costs), self._failure_hours), SHORTEST), LONGEST)

    def due(self, now: float) -> bool:
        """True if it is time to save. Asked after every step: the longest time between two calls counts as a step's."""
        if self._asked is None or self._state is None:
            self._state = now
        elif self._tried != self._asked:  # after a save the time between two questions is more than a step
            self._longest_step = max(self._longest_step, now - self._asked)
        self._asked = now
        if self._tried is not None and now < self._tried + min(self.interval, RETRY_SECONDS):
            return False
        lead = min(self._longest_save, self.interval / 2)
        return now >= self._state + self.interval - lead or self.last_call(now)

    def tried(self, now: float) -> None:
        """A save starts. Until `saved` reports its success, the next one is due only after a pause."""
        self._tried = now

    def saved(self, now: float, took: float, stalled: float | None = None) -> None:
        """A checkpoint was committed.

        Args:
            now: when its COMMIT was written.
            took: seconds from its state to its COMMIT.
            stalled: seconds of them for which training stopped, which are the cost of the save; None for all of them.
        """
        self._tried = None
        self._state = now - took
        self._longest_save = max(self._longest_save, took)
        self._costs.append(max(took if stalled is None else stalled, 1e-3))

    def last_call(self, now: float) -> bool:
        """True if the node's end is so near that a save must start; false once one has started after that instant."""
        if self._deadline is None or self._state is None:
            return False
        # One save may be under way, and this one follows it; the question may come up to one step late.
        latest = self._deadline - DEADLINE_MARGIN - 2 * self._longest_save - self._longest_step
        return self._state < latest <= now
