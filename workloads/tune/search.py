"""The search itself: trials are handed out from a queue, run in processes that are kept, and their ends written down.

Not by Ray Tune's `Tuner`: its actors would only stand between the search and the processes, its snapshots do not hold
the scheduler's milestones, and a trial that got no capacity does not go back into its queue.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from workloads.cluster.capacity import WAITING
from workloads.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    AuthError,
    CapacityError,
    InfeasibleError,
    PlaceError,
    WorkloadError,
    WorkloadFailedError,
)
from workloads.reporting import progress
from workloads.reporting.progress import counted
from workloads.tune.child import ENDED
from workloads.tune.ledger import Epoch, Ledger, Outcome, Trial, best, measured, ranking
from workloads.tune.processes import Process

PROGRESS_SECONDS = 10.0
"""How often the state of a running search is said."""

ACCIDENTS = 2
"""How often a trial whose process was killed is started again."""

ALIKE = 8
"""So many trials that failed with no epoch to show between all of them end the search: the others would fail too."""

THE_PLACE = {kind.exit_code: kind for kind in (InfeasibleError, CapacityError, AuthError, PlaceError)}
"""Ends of a trial that say something of the place and nothing of the trial, which therefore stays unfinished. Of the
last one that holds only while the place is out of order: a loader's process that ran out of memory ends so as well."""

BEAT_SECONDS = 1.0
"""Longest time between two looks at the clock."""

STOP_SECONDS = 60.0
"""How long a trial may take to end at SIGINT before it is killed; Ray Train's workers take a few seconds."""


class TrialQueue:
    """Hands out trials, at most `limit` at a time, and writes down how they end."""

    def __init__(self, ledger: Ledger, limit: int, tell: Callable[[str], None], check: Callable[[Trial], None]) -> None:
        """Begin the search, with the trials that have no outcome in the queue.

        Args:
            ledger: the search so far.
            limit: trials that fit at a time.
            tell: told how it goes.
            check: raises WorkloadError where the trial's data or storage is out of order at this moment.
        """
        self._ledger, self._plan, self._tell, self._check = ledger, ledger.plan, tell, check
        ledger.begin()
        self.limit = limit
        self.outcomes = ledger.outcomes
        self.waiting = ledger.left
        self.running: dict[str, _Running] = {}
        self.verdict: WorkloadError | None = None
        """Why no further trial is started."""
        self._began = self._said = time.monotonic()

    def take(self) -> Trial | None:
        """The next trial to run, if there is one and room for it."""
        if not self.waiting or self.verdict is not None or len(self.running) >= self.limit:
            return None
        trial = self.waiting.pop(0)
        self.running[trial.name] = _Running(trial, self._ledger.pasts[trial.name], time.monotonic())
        return trial

    def see(self, name: str, record: Mapping[str, Any]) -> None:
        """Note where a trial is, by what its `train` said."""
        self.running[name].see(record)

    def end(self, name: str, exit_code: int | None, problem: str = "") -> None:
        """Write down how a trial ended, or queue it again if it was the place that failed.

        Args:
            name: of the trial.
            exit_code: of its `train`; None if the search stopped it.
            problem: why it failed.
        """
        running = self.running.pop(name)
        self._ledger.pasts[name] = running.epochs  # it goes on from there, if it does
        if exit_code == EXIT_INTERRUPTED:  # when the search does
            return
        if exit_code in THE_PLACE and (wrong := self._wrong(running.trial, exit_code, problem)):
            self._make_do(running.trial, exit_code, wrong)
            return
        outcome = running.outcome(exit_code, problem)
        self._ledger.close(outcome)
        self._tell(self._ending(outcome))
        if len(self.outcomes) >= ALIKE and not any(
            other.epochs for other in [*self.outcomes.values(), *self.running.values()]
        ):
            self.verdict = WorkloadFailedError(
                f"the first {len(self.outcomes)} trials failed before their first epoch's end.",
                "Correct what the table names, then run the same command with --retry-failed.",
            )
        self._progress()

    def beat(self) -> None:
        """Say how it goes, if that was not said for a while."""
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._progress()

    def _wrong(self, trial: Trial, exit_code: int, problem: str) -> WorkloadError | None:
        """What is wrong with the place, by a look at it where it is more than a trial's word."""
        if exit_code != PlaceError.exit_code:
            return WorkloadError(problem, "")
        try:
            self._check(trial)
        except WorkloadError as error:
            return error
        return None

    def _make_do(self, trial: Trial, exit_code: int, wrong: WorkloadError) -> None:
        self.waiting.insert(0, trial)
        if exit_code != CapacityError.exit_code or not self.running:
            remedy = f"{wrong.remedy} Trials that have ended are kept; only the others will run.".lstrip()
            self.verdict = THE_PLACE[exit_code](wrong.problem, remedy)
            return
        self.limit = len(self.running)
        self._tell(
            f"trial {trial.name} found no place and waits for another to end; going on with {self.limit} at a time"
        )

    def _ending(self, outcome: Outcome) -> str:
        reached = f" after {counted(outcome.last['epoch'], 'epoch')}, {self._value(outcome)}" if outcome.epochs else ""
        why = f": {outcome.problem}" if outcome.problem else ""
        return f"trial {outcome.trial.name} {outcome.status}{reached}{why}"

    def _value(self, outcome: Outcome) -> str:
        return f"{self._plan.metric} {outcome.last[self._plan.metric]:.4f}"

    def _progress(self) -> None:
        self._said = now = time.monotonic()
        count = Counter(outcome.status for outcome in self.outcomes.values())
        states = [f"{len(self.outcomes)} of {counted(len(self._plan.trials), 'trial')} ended"]
        states += [f"{number} {status}" for status, number in sorted(count.items())]
        states += [
            f"{running.trial.name}: {running.waits or f'epoch {running.at:.1f}'}" for running in self.running.values()
        ]
        if (first := best(ranking(self._plan, self.outcomes.values()))) is not None:
            states.append(f"best {first.trial.name} with {self._value(first)}")
        self._tell(f"{', '.join(states)}; {now - self._began:.0f} s")


@dataclass
class _Running:
    """A trial that runs."""

    trial: Trial
    epochs: list[Epoch]
    began: float
    at: float = 0.0
    waits: str = "starting its process"
    """What it does or waits for, in its own words; empty while it trains."""

    def see(self, record: Mapping[str, Any]) -> None:
        """Take in one record of its `train`; an epoch that a restart repeated replaces the earlier telling."""
        if record["event"] == "note":
            text, _, _ = record["text"].partition(";")
            if not self.at or text.startswith(WAITING):
                self.waits = text
        if record["event"] in ("step", "epoch"):
            self.at, self.waits = float(record["epoch"]), ""
        if record["event"] == "epoch":
            self.epochs = [known for known in self.epochs if known["epoch"] < record["epoch"]] + [measured(record)]

    def outcome(self, exit_code: int | None, problem: str) -> Outcome:
        """Its end: by itself, by the search, or with an accident too many."""
        return Outcome(
            trial=self.trial,
            status="stopped" if exit_code is None else "complete" if exit_code == EXIT_OK else "failed",
            epochs=self.epochs,
            exit_code=exit_code,
            problem=problem,
            seconds=time.monotonic() - self.began,
        )


class Milestones:
    """Decides which trials go on, by Ray Tune's ASHA (arXiv 1810.05934), over all attempts at the search."""

    def __init__(self, ledger: Ledger) -> None:
        """Enter what trials had reported to earlier attempts at the search."""
        self._plan = plan = ledger.plan
        self._epochs = int(plan.base["epochs"])
        self._asha = ASHAScheduler(
            time_attr="epoch",
            metric="score",
            mode="max",
            max_t=self._epochs,
            grace_period=min(plan.grace_epochs, self._epochs),
            reduction_factor=plan.reduction,
            stop_last_trials=False,
        )
        self._trials: dict[str, Any] = {}
        for outcome in ledger.state():
            for epoch in outcome.epochs:
                self.stop(outcome.trial.name, epoch)

    def stop(self, trial: str, epoch: Epoch) -> bool:
        """Enter an epoch; true if the trial ends with it. After the last one there is nothing left to stop."""
        controller: Any = None  # at which ASHA does not look, and at a trial's id alone
        if trial not in self._trials:
            self._trials[trial] = SimpleNamespace(trial_id=trial)
            self._asha.on_trial_add(controller, self._trials[trial])
        result = {"epoch": epoch["epoch"], "score": self._plan.sign * self._plan.value(epoch)}
        decision = self._asha.on_trial_result(controller, self._trials[trial], result)
        return decision == TrialScheduler.STOP and epoch["epoch"] < self._epochs


class Runner:
    """Runs the trials of a queue, each in a process that no other trial has at that time."""

    def __init__(
        self,
        trials: TrialQueue,
        milestones: Milestones | None,
        address: str,
        work: Callable[[Trial], tuple[list[str], Path]],
    ) -> None:
        """Nothing is started yet.

        Args:
            trials: to run, and told of everything.
            milestones: which trials they stop early; None to stop none.
            address: of the Ray that all use.
            work: a trial's arguments of the command line, and the file for its messages.
        """
        self._trials = trials
        self._milestones = milestones
        self._address = address
        self._work = work
        self._records: queue.SimpleQueue[tuple[Process, dict[str, Any] | None]] = queue.SimpleQueue()
        self._running: dict[Process, Trial] = {}
        self._idle: list[Process] = []
        self._ends: dict[Process, tuple[float, int | None]] = {}
        """Of trials that were told to end: by when they have to, and the exit code that counts then."""
        self._accidents: Counter[str] = Counter()

    def run(self) -> None:
        """Run the trials to their ends; after Ctrl-C, which ends those that run, some have no outcome."""
        try:
            while self._begin_all():
                self._turn()
        except KeyboardInterrupt:
            progress.note(f"interrupted: ending the trials that run, which takes up to {STOP_SECONDS:.0f} s")
            for process in self._running.keys() - self._ends:
                self._end(process, EXIT_INTERRUPTED)
            while self._running:
                self._turn()
        finally:
            for process in [*self._running, *self._idle]:
                process.leave()

    def _begin_all(self) -> bool:
        """Begin the trials that there is room for; whether any runs."""
        while trial := self._trials.take():
            self._begin(trial)
        return bool(self._running)

    def _begin(self, trial: Trial) -> None:
        arguments, log = self._work(trial)
        tell = self._records.put
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            process = self._idle.pop() if self._idle else Process(self._address, log, lambda *said: tell(said))
        except OSError as error:
            problem = f"the process of trial {trial.name} cannot be started: {error}."
            self._trials.end(trial.name, PlaceError.exit_code, problem)
            return
        self._running[process] = trial
        with suppress(BrokenPipeError):  # it has just ended, of which it is heard next
            process.begin(arguments, log)

    def _end(self, process: Process, exit_code: int | None) -> None:
        self._ends[process] = time.monotonic() + STOP_SECONDS, exit_code
        process.interrupt()

    def _turn(self) -> None:
        """Take in one record, or that there was none for a beat."""
        with suppress(queue.Empty):
            process, record = self._records.get(timeout=BEAT_SECONDS)
            if record is None:
                self._lost(process)
            elif record["event"] == ENDED:
                self._ended(process, record["exit_code"])
            else:
                self._heard(process, record)
        for process, (deadline, _) in self._ends.items():
            if time.monotonic() > deadline:
                process.leave()
        self._trials.beat()

    def _heard(self, process: Process, record: dict[str, Any]) -> None:
        if process not in self._running:  # what its last trial left behind, a W&B that hung for one, still speaks
            return
        name = self._running[process].name
        self._trials.see(name, record)
        if record["event"] != "epoch" or process in self._ends:
            return
        if self._milestones and self._milestones.stop(name, measured(record)):
            self._end(process, None)

    def _ended(self, process: Process, exit_code: int) -> None:
        """Its trial has ended. A process that failed is not kept: nobody knows what of it still holds. Nor is one whose
        trial was told to end and ended by itself just then: its next trial would take that for its own."""
        kept = exit_code == EXIT_INTERRUPTED or (exit_code == EXIT_OK and process not in self._ends)
        # First, or Ctrl-C between the two would wait for the end of a trial in a process that has none.
        self._close(process, exit_code, process.failure() if exit_code else "")
        if kept:
            self._idle.append(process)
        else:
            process.leave()

    def _lost(self, process: Process) -> None:
        """It has ended itself: an accident, if it ran a trial, which goes on from its checkpoint in another process."""
        if process in self._idle:
            self._idle.remove(process)
        elif trial := self._running.get(process):
            self._accidents[trial.name] += 1
            if process in self._ends or self._accidents[trial.name] > ACCIDENTS:
                self._close(process, WorkloadFailedError.exit_code, f"its process was killed {ACCIDENTS + 1} times")
            else:
                progress.note(f"{process.ended()} ended the process of trial {trial.name}, which is started again")
                del self._running[process]
                self._begin(trial)

    def _close(self, process: Process, exit_code: int, problem: str) -> None:
        trial = self._running.pop(process)
        told, code = process in self._ends, self._ends.pop(process, (0.0, exit_code))[1]
        self._trials.end(trial.name, code, "" if told else problem)
