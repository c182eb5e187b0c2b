"""The link between the loop and its surroundings: records to the controller, checkpoints to storage, notices from Ray.

Only rank 0 saves: under DDP all ranks hold the same state. The loop waits for a save only if there may be no later one:
at the end, at a notice, and when the controller asks for a save.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from workloads.checkpoints.interval import Schedule
from workloads.checkpoints.store import CheckpointStore, Saved
from workloads.checkpoints.writer import PASSING, Snapshot, Writer
from workloads.convnext.config import TrainConfig
from workloads.convnext.learning.loop import Position, Record, Training
from workloads.convnext.run import end_of_node, stall
from workloads.convnext.run.end_of_node import Notice
from workloads.errors import BudgetError
from workloads.reporting.cost import Budget
from workloads.reporting.history import Segments
from workloads.storage.folders import Folder

REPORT_SECONDS = 10.0
"""Longest time between reports within an epoch. Ray Train's report is a barrier, which may wait for the next poll."""

LAST_PACE = 10
"""While a node with notice still runs, a save begins each time that this many saves could have been written."""


@dataclass
class _Save:
    """A save in flight."""

    position: Position
    reason: str
    began: float
    blocked: float
    """Seconds for which training stopped to copy the state."""


class Reporter:
    """Receives the loop's records on every rank; on rank 0 it also saves."""

    def __init__(
        self,
        config: TrainConfig,
        store: CheckpointStore,
        folder: Folder,
        leads: bool,
        send: Callable[[list[Record]], None],
    ) -> None:
        """Collect nothing yet.

        Args:
            config: how often to save.
            store: where to save.
            folder: folder of the run, for its history.
            leads: whether this is rank 0.
            send: sends records to the controller; every rank calls it equally often, all but rank 0 with none.
        """
        self._config, self._store = config, store
        self._leads, self._send = leads, send
        self._pending: deque[Record] = deque()  # the writer's thread adds to it too
        self._segments = Segments(folder, time.time_ns())
        self._writer = Writer(store, self.say)
        self._schedule = Schedule(config.checkpoint_seconds, config.failure_hours, None)
        self._notice: Notice | None = None
        self._budget: Budget | None = None
        self._noticed: float | None = None
        self._save: _Save | None = None
        self._saved: Position | None = None
        self._measured = False
        self._since = self._took = 0.0  # when its state was taken, and seconds from then to COMMIT
        self._unreported = 0.0
        self._since_first: tuple[float, float] | None = None  # time and epoch of the first record

    def start(
        self,
        until: float | None,
        watched: Notice | None,
        budget: Budget | None = None,
        saved: Position | None = None,
    ) -> None:
        """Begin or resume the run.

        Args:
            until: when the run duration of the first of its nodes ends, unix time; None if no node has an end.
            watched: rank 0's watch over its nodes.
            budget: cost limit; None without one.
            saved: position of the checkpoint that the run resumes from, which is not saved again.
        """
        self._budget, self._saved = budget, replace(saved) if saved else None
        self._schedule = Schedule(self._config.checkpoint_seconds, self._config.failure_hours, until)
        self._notice = watched

    def say(self, message: str) -> None:
        """Tell the user one sentence."""
        self._tell({"event": "note", "text": message})

    def record(self, record: Record) -> None:
        """Collect; report at an epoch's end and every ten seconds, by the record's own clock, which all ranks share."""
        timed = {**record, "time": time.time(), "eta_seconds": self._remaining(record["epoch"])}
        self._tell(timed)
        self._unreported += record["seconds"] if record["event"] == "step" else 0.0
        if record["event"] == "epoch" or self._unreported >= REPORT_SECONDS:
            self.flush()

    def keep(self, record: Record) -> None:
        """Collect a record for the run's history, which is reported with the next ones."""
        self._tell({**record, "time": time.time()})

    def flush(self) -> None:
        """Report the collected records. Every rank calls this equally often."""
        self._send([self._pending.popleft() for _ in range(len(self._pending))])
        self._unreported = 0.0

    def finish(self) -> None:
        """Complete the run: store and report the records since the last checkpoint."""
        if self._leads:
            self._segments.close()()
        self.flush()

    def after_step(self, training: Training) -> None:
        """Save if a save is due."""
        if self._leads and training.position.epoch >= self._config.epochs:
            self._settle(self._writer.wait(0))
            self._save_now(training, "end")
        else:
            self.save_if_due(training)

    def save_if_due(self, training: Training) -> None:
        """Save if a save is due, even if a step's evaluation has not ended.

        Raises:
            BudgetError: the run's budget is spent, except for the time that the last save has just taken.
        """
        stall.moved()
        if not self._leads:
            return
        self._settle(self._writer.wait(0))
        if self._budget and time.time() + self._took >= self._budget.until:
            self._stop(training, self._budget)
        if end_of_node.asked():
            end_of_node.answer(saved=self._try_now(training, "resize"))
        elif (deadline := self._notice.deadline if self._notice else None) is not None:
            self._before(deadline, training)
        elif self._schedule.due(time.time()) or not self._measured:
            # The first save is due at once: later saves start early enough only if the cost of one is known.
            self._begin(training, "deadline" if self._schedule.last_call(time.time()) else "interval")

    def _stop(self, training: Training, budget: Budget) -> None:
        """Save, and end the run before it costs more than its budget."""
        step, kept = training.position.step, "its checkpoint is saved"
        try:
            self._save_now(training, "budget")
        except PASSING as error:
            kept = f"an older checkpoint is kept, since this step's was not saved: {error.problem}"
        self.keep({"event": "budget", "step": step, "usd": budget.usd})
        with suppress(*PASSING):
            self._segments.close()()  # otherwise the same command would not know that the budget is spent
        raise BudgetError(
            f"the run has cost the {budget.usd:,.2f} USD of --max-usd, at step {step}; {kept}",
            "The same command with a higher --max-usd goes on from there.",
        )

    def _tell(self, record: Record) -> None:
        if not self._leads:  # the other ranks would keep every record to the end
            return
        self._pending.append(record)
        if "step" in record and record["event"] != "saving":  # which only says where the run is
            self._segments.add(record)

    def _before(self, deadline: float, training: Training) -> None:
        """Save at once, and then more often than usual, so that little is redone: a node ends at `deadline`."""
        now = time.time()
        if self._noticed != deadline:
            self._noticed = deadline
            left = None if math.isinf(deadline) else deadline - now
            self.keep({"event": "notice", "source": "drain", "seconds_left": left, "step": training.position.step})
            self._try_now(training, "notice")
        elif self._schedule.due(now) or self._since + LAST_PACE * self._took <= now < deadline - 2 * self._took:
            self._begin(training, "notice")

    def _begin(self, training: Training, reason: str) -> None:
        if self._writer.busy or training.position == self._saved:
            return
        now = time.time()
        self._schedule.tried(now)
        self._measured = True
        state = training.snapshot()
        self._save = _Save(replace(training.position), reason, now, time.time() - now)
        self.keep({"event": "saving", "step": training.position.step})
        self._writer.start(self._snapshot(training, state))

    def _save_now(self, training: Training, reason: str) -> None:
        began = time.time()
        saved = self._writer.save_now(lambda: self._snapshot(training, training.snapshot()))
        self._settle(self._writer.wait(0))
        self._committed(saved, _Save(replace(training.position), reason, began, saved.committed - began))
        if reason == "end":
            self._settle(self._writer.wait(None))
            self._store.tidy(saved.name)

    def _try_now(self, training: Training, reason: str) -> bool:
        """Save at once if storage allows it; if not, there is an older checkpoint, and later ones will follow."""
        try:
            self._save_now(training, reason)
        except PASSING as error:
            self.say(f"the checkpoint for a {reason} was not saved: {error.problem} Training goes on.")
            return False
        return True

    def _snapshot(self, training: Training, state: dict[str, Any]) -> Snapshot:
        facts, before = self._facts(training), self._segments.close()
        return Snapshot(state, training.position.step, training.identity, facts, before)

    def _settle(self, saved: Saved | None) -> None:
        """Record the end of the save in flight."""
        if saved is not None and self._save is not None:
            self._committed(saved, self._save)
        if not self._writer.busy:
            self._save = None

    def _committed(self, saved: Saved, save: _Save) -> None:
        self._saved = save.position
        self._since, self._took = save.began, saved.committed - save.began
        self._schedule.saved(saved.committed, self._took, save.blocked)
        record = {"event": "checkpoint", "name": saved.name, "bytes": saved.size, "seconds": self._took}
        self.keep({**record, "step": save.position.step, "reason": save.reason, "blocked_seconds": save.blocked})

    def _facts(self, training: Training) -> Record:
        return {
            "world_size": training.world_size,
            "config": self._config.to_dict(),
            "epoch": training.position.epoch,
            "consumed": training.position.consumed,
        }

    def _remaining(self, epoch: float) -> float | None:
        """Seconds left at the pace since the first record; the time before it tells no pace. None until then."""
        if self._since_first is None:
            self._since_first = (time.monotonic(), epoch)
        since, first = self._since_first
        done, left = epoch - first, self._config.epochs - epoch
        return (time.monotonic() - since) * left / done if done > 0 else None if left > 0 else 0.0
