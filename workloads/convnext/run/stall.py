"""Reports where the ranks are while a run makes no progress: which rank the others wait for.

When a collective times out, the ranks that waited fail, and the one that kept them waiting is not among them.
The watch runs in Ray Train's controller (ray 2.60, train/v2), and this module imports no torch.
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
"""Share of the collective timeout: ranks that have not moved for that long are reported."""

ANSWER_SECONDS = 5.0
"""How long the ranks may take to report where they are."""

NAMED = 2
"""Maximum number of ranks at one line that are named, with host and process; if there are more, they are counted."""

_moves = 0
"""In each worker: steps and parts of evaluations that it has done."""


def moved() -> None:
    """Note that the rank in this process has made progress."""
    global _moves
    _moves += 1


@dataclass(frozen=True)
class Whereabouts:
    """Where one rank is."""

    rank: int
    host: str
    process: int
    moves: int | None = None
    """As `_moves` counts; None where the process gave no answer."""
    line: str = ""
    """Of its training thread: our own innermost line, and what it has called."""


class StallWatch:
    """Asks the ranks of one worker group where they are when no report comes, and says so if none of them moves."""

    def __init__(self, workers: Sequence[Any], seconds: float, tell: Callable[[str], None]) -> None:
        """Begin to watch.

        Args:
            workers: Ray Train's handles of the ranks.
            seconds: how long no rank may be seen to move before that is reported. It is reported again after twice the
                time, and in the end every four times `seconds`.
            tell: called with one sentence.
        """
        self._workers, self._seconds, self._tell = workers, seconds, tell
        self._seen: list[Whereabouts] = []
        self._questions: list[Any] = []
        self._asked = 0.0
        self._moved()

    def look(self, statuses: Iterable[Any]) -> None:
        """Take note of a poll. It waits for nothing: what is asked at one poll is answered at a later one.

        Args:
            statuses: Ray Train's, of all ranks.
        """
        now = time.monotonic()
        if any(status.training_report or not status.running for status in statuses):
            self._moved()
        elif self._questions:
            answered, waiting = ray.wait(self._questions, num_returns=len(self._questions), timeout=0)
            if not waiting or now - self._asked >= ANSWER_SECONDS:
                self._judge(now, [question if question in answered else None for question in self._questions])
        # Several times within `seconds`: ranks that moved between two answers get on, however seldom they report.
        elif now - max(self._since, self._asked) >= self._seconds / 4:
            self._questions, self._asked = [worker.execute_async(whereabouts) for worker in self._workers], now

    def _moved(self) -> None:
        self._since = time.monotonic()
        self._due = self._seconds
        self._questions = []

    def _judge(self, now: float, questions: list[Any]) -> None:
        before, self._questions = {one.rank: one.moves for one in self._seen}, []
        self._seen = [_seen(worker, question) for worker, question in zip(self._workers, questions, strict=True)]
        if any(one.moves is not None and one.moves != before.get(one.rank) for one in self._seen):
            self._moved()
        elif (quiet := now - self._since) >= self._due:
            self._tell(told(quiet, self._seen))
            self._due = quiet + min(quiet, 4 * self._seconds)


def _seen(worker: Any, question: Any) -> Whereabouts:
    known = worker.distributed_context.world_rank, worker.metadata.hostname, worker.metadata.pid
    try:
        return Whereabouts(*known) if question is None else Whereabouts(*known, *ray.get(question))
    except RayError:  # the rank is lost, which Ray Train notices by itself
        return Whereabouts(*known)


def told(seconds: float, ranks: Sequence[Whereabouts]) -> str:
    """One sentence about ranks that do not move; those that are few at their line come first.

    Args:
        seconds: since one of them moved.
        ranks: all of them.
    """
    together: dict[str, list[Whereabouts]] = {}
    for rank in ranks:
        together.setdefault(rank.line, []).append(rank)
    parts = []
    for line, group in sorted(together.items(), key=lambda item: len(item[1])):
        single = len(group) == 1
        if len(group) <= NAMED:
            who = " and ".join(f"rank {member.rank} ({member.host}, process {member.process})" for member in group)
        else:
            who = counted(len(group), "rank") if len(together) > 1 else f"all {len(group)} ranks"
        does = f"{'is' if single else 'are'} in {line}" if line else f"{'gives' if single else 'give'} no answer"
        parts.append(f"{who} {does}")
    return f"no progress for {seconds:.0f} s: {'; '.join(parts)}"


def whereabouts() -> tuple[int, str]:
    """How often the rank in this process has moved, and the line that its training is at."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        # Ray Train's name for the thread (thread_runner.py).
        if thread.name.startswith("TrainingThread") and thread.ident in frames:
            return _moves, _line(frames[thread.ident])
    return _moves, "no training"


def _line(innermost: FrameType) -> str:
    stack = [frame for frame, _ in traceback.walk_stack(innermost)]
    ours = next((frame for frame in stack if _package(frame) == "workloads"), innermost)
    file = ours.f_code.co_filename
    here = f"{ours.f_code.co_name} ({file[max(file.rfind('/workloads/') + 1, 0) :]}:{ours.f_lineno})"
    if ours is innermost:
        return here
    return f"{innermost.f_code.co_name} of {_package(innermost)}, called by {here}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
