"""Between the loop and what surrounds it: records to the controller, checkpoints to storage, notices from Ray.

Only rank 0 saves: under DDP all ranks hold the same state. The loop waits for a save only where there is no later one:
at the end, at a notice, and where the controller asks for it.
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
"""Longest time between reports within an epoch. Ray Train's is a barrier, and may wait for the controller's poll."""

LAST_PACE = 10
"""While a node that was given notice still runs, a save is begun each time that so many could have been written."""


@dataclass
class _Save:
    """A save in flight."""

    position: Position
    reason: str
    began: float
    blocked: float
    """Seconds that training stood still to copy the state."""


class Reporter:
    """Receiver of the loop's records on every rank; on rank 0 it also saves."""

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
            store: where to.
            folder: of the run, for its history.
            leads: whether this is rank 0.
            send: carries records to the controller; every rank calls it equally often, all but rank 0 with none.
        """
        self._config, self._store = config, store
        self._leads, self._send = leads, send
        self._pending: deque[Record] = deque()  # also the writer's thread adds to it
        self._segments = Segments(folder, time.time_ns())
        self._writer = Writer(store, self.say)
        self._schedule = Schedule(config.checkpoint_seconds, config.failure_hours, None)
        self._notice: Notice | None = None
        self._budget: Budget | None = None
        self._noticed: float | None = None
        self._save: _Save | None = None
        self._saved: Position | None = None
        self._measured = False
        self._since = self._took = 0.0  # when its state was taken, and seconds from there to COMMIT
        self._unreported = 0.0
        self._since_first: tuple[float, float] | None = None  # time and epoch of the first record

    def start(
        self,
        until: float | None,
        watched: Notice | None,
        budget: Budget | None = None,
        saved: Position | None = None,
    ) -> None:
        """The run begins, or goes on.

        Args:
            until: when the run duration of the first of its nodes ends, unix time; None where none has an end.
            watched: rank 0's watch over its nodes.
            budget: what it may cost; None without a limit.
            saved: where it goes on from a checkpoint, which is not saved once more.
        """
        self._budget, self._saved = budget, replace(saved) if saved else None
        self._schedule = Schedule(self._config.checkpoint_seconds, self._config.failure_hours, until)
        self._notice = watched

    def say(self, message: str) -> None:
        """Tell the user one sentence."""
        self._tell({"event": "note", "text": message})

    def record(self, record: Record) -> None:
        """Collect; report at an epoch's end and every ten seconds, by the record's own clock that all ranks share."""
        timed = {**record, "time": time.time(), "eta_seconds": self._remaining(record["epoch"])}
        self._tell(timed)
        self._unreported += record["seconds"] if record["event"] == "step" else 0.0
        if record["event"] == "epoch" or self._unreported >= REPORT_SECONDS:
            self.flush()

    def keep(self, record: Record) -> None:
        """Collect a record that belongs to the run's history, and is reported with the next ones."""
        self._tell({**record, "time": time.time()})

    def flush(self) -> None:
        """Report what was collected. Every rank calls it equally often."""
        self._send([self._pending.popleft() for _ in range(len(self._pending))])
        self._unreported = 0.0

    def finish(self) -> None:
        """The run is complete: store and report what was told after the last checkpoint."""
        if self._leads:
            self._segments.close()()
        self.flush()

    def after_step(self, training: Training) -> None:
        """Save if it is time to."""
        if self._leads and training.position.epoch >= self._config.epochs:
            self._settle(self._writer.wait(0))
            self._save_now(training, "end")
        else:
            self.save_if_due(training)

    def save_if_due(self, training: Training) -> None:
        """Save if it is time to, also where a step's evaluation has not ended.

        Raises:
            BudgetError: what the run may cost is spent, but for the time that the last save has just taken.
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
            # The first one is due at once: what a save costs here must be known for the others to be early enough.
            self._begin(training, "deadline" if self._schedule.last_call(time.time()) else "interval")

    def _stop(self, training: Training, budget: Budget) -> None:
        """Save, and end the run before it costs more."""
        step, kept = training.position.step, "its checkpoint is saved"
        try:
            self._save_now(training, "budget")
        except PASSING as error:
            kept = f"an older checkpoint is kept, since this step's was not saved: {error.problem}"
        self.keep({"event": "budget", "step": step, "usd": budget.usd})
        with suppress(*PASSING):
            self._segments.close()()  # or the same command would not know that all is spent
        raise BudgetError(
            f"the run has cost the {budget.usd:,.2f} USD of --max-usd, at step {step}; {kept}",
            "The same command with a higher --max-usd goes on from there.",
        )

    def _tell(self, record: Record) -> None:
        if not self._leads:  # the others would keep every record to the end
            return
        self._pending.append(record)
        if "step" in record and record["event"] != "saving":  # which only says where the run is
            self._segments.add(record)

    def _before(self, deadline: float, training: Training) -> None:
        """A node goes at `deadline`: save at once, and then more often than usual, so that little is redone."""
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
        """Save at once if storage lets us; where it does not, there is an older checkpoint, and others will come."""
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
        """Take note of the end of the save in flight."""
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
        """Seconds left at the pace since the first record, since what comes before that is no pace; None until then."""
        if self._since_first is None:
            self._since_first = (time.monotonic(), epoch)
        since, first = self._since_first
        done, left = epoch - first, self._config.epochs - epoch
        return (time.monotonic() - since) * left / done if done > 0 else None if left > 0 else 0.0
