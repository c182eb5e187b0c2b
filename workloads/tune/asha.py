"""Which trials go on: ASHA, with its milestones filled again from what a resumed search knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from workloads.tune.ledger import Epoch, Ledger, Outcome, Plan, measured


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A search as this attempt at it found it."""

    plan: Plan
    ledger: Ledger
    outcomes: Mapping[str, Outcome]
    """Of the trials that had ended, by name."""
    pasts: Mapping[str, list[Epoch]]
    """Epochs of the trials that go on, by name."""


class ResumedAsha(ASHAScheduler):
    """ASHA (arXiv 1810.05934) over epochs, whose milestones know the trials of earlier attempts at the search."""

    def __init__(self, begun: Begun) -> None:
        """Fill the milestones with the trials that have ended; those that go on enter them when they do."""
        self._plan = plan = begun.plan
        self._epochs = int(plan.base["epochs"])
        super().__init__(
            time_attr="epoch",
            metric="score",
            mode="max",
            max_t=self._epochs,
            grace_period=min(plan.grace_epochs, self._epochs),
            reduction_factor=plan.reduction,
            stop_last_trials=False,
        )
        self._pasts = begun.pasts
        for name, outcome in begun.outcomes.items():
            self._replay(None, SimpleNamespace(trial_id=name), outcome.epochs)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Enter a trial, with what is known of it."""
        self._replay(tune_controller, trial, self._pasts.get(trial.config["trial"], []))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide whether the trial goes on; only an epoch's end is a reason to stop it, and the last is none."""
        epoch = measured(result)
        if not epoch:
            return TrialScheduler.CONTINUE
        decision = self._enter(tune_controller, trial, epoch)
        return TrialScheduler.CONTINUE if epoch["epoch"] >= self._epochs else decision

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Nothing: its last epoch has been entered when it was reported."""

    def _replay(self, controller: Any, trial: Any, epochs: list[Epoch]) -> None:
        super().on_trial_add(controller, trial)
        for epoch in epochs:
            self._enter(controller, trial, epoch)

    def _enter(self, controller: Any, trial: Any, epoch: Epoch) -> str:
        score = self._plan.sign * self._plan.value(epoch)
        return super().on_trial_result(controller, trial, {"epoch": epoch["epoch"], "score": score})
