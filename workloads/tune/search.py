"""The search itself: Ray Tune runs the trials, and each end of one is written down.

Trials come from a queue and not from Ray Tune's own sampler, since a trial that got no capacity goes back into it.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

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
from workloads.reporting.progress import counted
from workloads.tune.asha import Begun, ResumedAsha
from workloads.tune.ledger import Epoch, Outcome, Trial, measured, ranking
from workloads.tune.trial import TrainProcess

PROGRESS_SECONDS = 10.0
"""How often the state of a running search is said."""

ACCIDENTS = 2
"""How often a trial whose process was killed is started again."""

ALIKE = 8
"""So many trials that failed with no epoch to show between all of them end the search: the others would fail too."""

THE_PLACE = {kind.exit_code: kind for kind in (InfeasibleError, CapacityError, AuthError, PlaceError)}
"""Ends of a trial that say something of the place and nothing of the trial, which therefore stays unfinished. Of the
last one that holds only while the place is out of order: a loader's process that ran out of memory ends so as well."""

_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # CSV, JSON and TensorBoard files of Ray's own
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # most results say only where a trial is
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a box at any verbosity
}


class TrialSearcher(Searcher):
    """Hands trials to Ray Tune, at most `limit` at a time, and writes down how they end."""

    def __init__(
        self,
        begun: Begun,
        limit: int,
        work: Callable[[Trial], dict[str, Any]],
        tell: Callable[[str], None],
        check: Callable[[Trial], None],
    ) -> None:
        """Queue the trials that have no outcome.

        Args:
            begun: the search so far.
            limit: trials that fit at a time.
            work: what `TrainProcess` is told of a trial.
            tell: told how it goes.
            check: raises WorkloadError where the trial's data or storage is out of order at this moment.
        """
        super().__init__()
        self._plan = begun.plan
        self._pasts = begun.pasts
        self._ledger = begun.ledger
        self._work = work
        self._tell = tell
        self._check = check
        self.limit = limit
        self.outcomes = dict(begun.outcomes)
        self.waiting = [trial for trial in begun.plan.trials if trial.name not in begun.outcomes]
        self.running: dict[str, _Running] = {}
        self.verdict: WorkloadError | None = None
        """Why no further trial is started."""
        self._began = self._said = time.monotonic()

    def suggest(self, trial_id: str) -> Any:
        """The next trial, `FINISHED`, or None while there is no room."""
        exhausted = not self.waiting or self.verdict is not None
        if exhausted and not self.running:
            return Searcher.FINISHED
        if exhausted or len(self.running) >= self.limit:
            return None
        trial = self.waiting.pop(0)
        self.running[trial_id] = _Running(trial, list(self._pasts.get(trial.name, [])), time.monotonic())
        return {"trial": trial.name, **self._work(trial)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Note where a trial is."""
        self.running[trial_id].see(result)
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._progress()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Write down how a trial ended, or queue it again if it was the place that failed."""
        running = self.running.pop(trial_id)
        running.see(result or {})
        exit_code = (result or {}).get("exit_code")
        if exit_code == EXIT_INTERRUPTED:  # by someone else: it goes on when the search does
            return
        problem = str((result or {}).get("problem", ""))
        if exit_code in THE_PLACE and not (exit_code == PlaceError.exit_code and self._in_order(running.trial)):
            self._make_do(running.trial, exit_code, problem)
            return
        outcome = running.outcome(exit_code, problem, error)
        self.outcomes[outcome.trial.name] = outcome
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

    def save(self, checkpoint_path: str) -> None:
        """Nothing: what a resume needs is in the ledger."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, for the same reason."""

    def _in_order(self, trial: Trial) -> bool:
        try:
            self._check(trial)
        except WorkloadError:
            return False
        return True

    def _make_do(self, trial: Trial, exit_code: int, problem: str) -> None:
        self.waiting.insert(0, trial)
        if exit_code != CapacityError.exit_code or not self.running:
            self.verdict = THE_PLACE[exit_code](problem, "The same command goes on with the trials that are left.")
            return
        self.limit = len(self.running)
        self._tell(
            f"trial {trial.name} found no place and waits for another to end; going on with {self.limit} at a time"
        )

    def _ending(self, outcome: Outcome) -> str:
        reached = f" after {counted(outcome.epochs[-1]['epoch'], 'epoch')}" if outcome.epochs else ""
        value = f", {self._plan.metric} {outcome.epochs[-1][self._plan.metric]:.4f}" if outcome.epochs else ""
        why = f": {outcome.problem}" if outcome.problem else ""
        return f"trial {outcome.trial.name} {outcome.status}{reached}{value}{why}"

    def _progress(self) -> None:
        self._said = now = time.monotonic()
        count = Counter(outcome.status for outcome in self.outcomes.values())
        states = [f"{len(self.outcomes)} of {counted(len(self._plan.trials), 'trial')} ended"]
        states += [f"{number} {status}" for status, number in sorted(count.items())]
        states += [
            f"{running.trial.name} {running.waits or f'in epoch {running.at:.1f}'}" for running in self.running.values()
        ]
        best = next((found for found in ranking(self._plan, self.outcomes.values()) if found.epochs), None)
        if best is not None:
            states.append(f"best {best.trial.name} with {self._plan.metric} {best.epochs[-1][self._plan.metric]:.4f}")
        self._tell(f"{', '.join(states)}; {now - self._began:.0f} s")


@dataclass
class _Running:
    """A trial that runs."""

    trial: Trial
    epochs: list[Epoch]
    began: float
    at: float = 0.0
    waits: str = ""
    """What it waits for, in its own words; empty while it trains."""

    def see(self, result: Mapping[str, Any]) -> None:
        """Take in one result of Ray Tune; an epoch that a restart repeated replaces the earlier telling."""
        self.at = float(result.get("at", self.at))
        self.waits = str(result.get("waits", ""))
        epoch = measured(result)
        if epoch:
            self.epochs = [known for known in self.epochs if known["epoch"] < epoch["epoch"]] + [epoch]

    def outcome(self, exit_code: int | None, problem: str, error: bool) -> Outcome:
        """Its end: by itself, by the search, or with an accident too many."""
        if error:
            exit_code, problem = 5, f"its process was killed {ACCIDENTS + 1} times"
        return Outcome(
            trial=self.trial,
            status="stopped" if exit_code is None else "complete" if exit_code == EXIT_OK else "failed",
            epochs=self.epochs,
            exit_code=exit_code,
            problem=problem,
            seconds=time.monotonic() - self.began,
        )


def run(trials: TrialSearcher, begun: Begun) -> None:
    """Run the trials to their ends; after Ctrl-C, which ends those that run, some have no outcome.

    Args:
        trials: to run, and told of everything.
        begun: the search so far.
    """
    scheduler = ResumedAsha(begun) if begun.plan.kind == "tune" else FIFOScheduler()
    os.environ.update(_SETTINGS)
    # It tells of each failed trial in several tracebacks; the search says it in a sentence.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="oasis-tune-") as directory:
        tuner = tune.Tuner(
            tune.with_resources(TrainProcess, {_own_node(): 0.001}),
            tune_config=tune.TuneConfig(search_alg=trials, scheduler=scheduler, num_samples=-1),
            run_config=tune.RunConfig(
                name="search",
                storage_path=directory,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=ACCIDENTS),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        tuner.fit()


def _own_node() -> str:
    """Resource that Ray gives this process's node alone: trials' `train` processes belong beside the search."""
    here = ray.get_runtime_context().get_node_id()
    [node] = [node for node in ray.nodes() if node["NodeID"] == here]
    return next(name for name in node["Resources"] if name.startswith("node:") and "__internal_head__" not in name)
