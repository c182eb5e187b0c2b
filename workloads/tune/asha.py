"""Which trials go on: Ray Tune's ASHA, with its milestones filled again from what a resumed search knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from workloads.tune.ledger import Begun, Epoch


class Milestones:
    """ASHA (arXiv 1810.05934) over epochs."""

    def __init__(self, begun: Begun) -> None:
        """Enter what trials had reported to earlier attempts at the search."""
        self._plan = plan = begun.plan
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
        ended = {name: outcome.epochs for name, outcome in begun.outcomes.items()}
        for name, epochs in {**ended, **begun.pasts}.items():
            for epoch in epochs:
                self.stop(name, epoch)

    def stop(self, trial: str, epoch: Epoch) -> bool:
        """Whether a trial ends with this epoch, which is entered; after the last one there is nothing left to stop."""
        controller: Any = None  # at which ASHA does not look, and at a trial's id alone
        if trial not in self._trials:
            self._trials[trial] = SimpleNamespace(trial_id=trial)
            self._asha.on_trial_add(controller, self._trials[trial])
        result = {"epoch": epoch["epoch"], "score": self._plan.sign * self._plan.value(epoch)}
        decision = self._asha.on_trial_result(controller, self._trials[trial], result)
        return decision == TrialScheduler.STOP and epoch["epoch"] < self._epochs
