"""Where the ranks are, said while a run does not get on: which of them the others wait for.

When the time of a collective is over, the ranks that waited fail, and the one that kept them waiting is not among them.
What is here runs in Ray Train's controller (ray 2.60, train/v2), but for `place`, and imports no torch.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import ray
from ray.exceptions import RayError

from workloads.reporting.progress import counted

SHARE = 0.1
"""Of the time after which a collective is given up: a run without a report for so long is looked at."""

ANSWER_SECONDS = 5.0
"""How long the ranks may take to say where they are."""

NAMED = 2
"""Most ranks at one place that are named, with host and process; more are counted."""


@dataclass(frozen=True)
class Rank:
    """One rank of a run that does not get on."""

    number: int
    host: str
    process: int
    place: str | None
    """As `place` has it; None where the process gave no answer."""


class StallWatch:
    """Asks the ranks of one worker group where they are when no report has come for a while, and tells it."""

    def __init__(self, workers: Sequence[Any], seconds: float, say: Callable[[str], None]) -> None:
        """Begin to watch.

        Args:
            workers: Ray Train's handles of the ranks.
            seconds: how long without a report before they are asked; twice as long for each next time.
            say: told one sentence.
        """
        self._workers, self._seconds, self._say = workers, seconds, say
        self._since = time.monotonic()
        self._due = seconds
        self._asked: list[Any] = []
        self._until = 0.0

    def look(self, statuses: Iterable[Any]) -> None:
        """Take note of a poll. It waits for nothing: what was asked is answered by a later one.

        Args:
            statuses: Ray Train's, of all ranks.
        """
        now = time.monotonic()
        if any(status.training_report or not status.running for status in statuses):
            self._since, self._due, self._asked = now, self._seconds, []
        elif not self._asked and now - self._since >= self._due:
            self._asked = [worker.execute_async(place) for worker in self._workers]
            self._until = now + ANSWER_SECONDS
        elif self._asked:
            answered, waiting = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
            if not waiting or now >= self._until:
                places = {question: _answer(question) for question in answered}
                ranks = [
                    Rank(worker.distributed_context.world_rank, worker.metadata.hostname, worker.metadata.pid, found)
                    for worker, found in zip(self._workers, map(places.get, self._asked), strict=True)
                ]
                self._say(told(now - self._since, ranks))
                self._asked, self._due = [], 2 * (now - self._since)


def _answer(question: Any) -> str | None:
    try:
        return ray.get(question)
    except RayError:  # a rank that is lost, which Ray Train sees by itself
        return None


def told(seconds: float, ranks: Sequence[Rank]) -> str:
    """Where the ranks are, in one sentence; those that are few at their place first.

    Args:
        seconds: since the last report.
        ranks: all of them.
    """
    places: dict[str | None, list[Rank]] = {}
    for rank in ranks:
        places.setdefault(rank.place, []).append(rank)
    parts = []
    for where, those in sorted(places.items(), key=lambda item: len(item[1])):
        one = len(those) == 1
        if len(those) <= NAMED:
            who = " and ".join(f"rank {rank.number} ({rank.host}, process {rank.process})" for rank in those)
        else:
            who = counted(len(those), "rank") if len(places) > 1 else f"all {len(those)} ranks"
        does = f"{'is' if one else 'are'} {where}" if where else f"{'gives' if one else 'give'} no answer"
        parts.append(f"{who} {does}")
    return f"no progress for {seconds:.0f} s: {'; '.join(parts)}"


def place() -> str:
    """Where the training in this process is: our own innermost line, and what it has called."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        # Ray Train's name of it (thread_runner.py).
        if thread.name.startswith("TrainingThread") and thread.ident in frames:
            return _place(frames[thread.ident])
    return "not training"


def _place(innermost: FrameType) -> str:
    stack = [frame for frame, _ in traceback.walk_stack(innermost)]
    ours = next((frame for frame in stack if _package(frame) == "workloads"), innermost)
    file = ours.f_code.co_filename
    where = f"{ours.f_code.co_name} ({file[max(file.rfind('/workloads/') + 1, 0) :]}:{ours.f_lineno})"
    if ours is innermost:
        return f"in {where}"
    return f"in {innermost.f_code.co_name} of {_package(innermost)}, called by {where}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
