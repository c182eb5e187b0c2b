"""What a search is and how far it has come, in its folder: the plan, and an outcome for each trial that has ended.

A search is its name, as a run is: the same command again reads this and goes on with the trials that have no outcome.
Ray Tune's own snapshots are not used: they are pickles, lack the scheduler's milestones, and take no more samples.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from workloads.errors import DataIntegrityError, UsageError
from workloads.reporting.history import READERS, history
from workloads.reporting.progress import counted
from workloads.runs import catalog as run_catalog
from workloads.storage.folders import Folder

PLAN = "search.json"
OUTCOME = run_catalog.TRIAL
SCHEMA = 1

Status = Literal["complete", "stopped", "failed", "unfinished"]
"""`stopped` was worse than its peers at a milestone; `unfinished` has no outcome and goes on when the search does."""

METRICS = {"val/accuracy": "max", "val/loss": "min"}
"""Metrics that a search can rank trials by, and which direction is better."""

Epoch = dict[str, float]
"""One epoch's end: `epoch`, and what was measured."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: a run of its own, below the search's folder."""

    name: str
    """Of the run."""
    changes: dict[str, Any]
    """Fields of the configuration that the search decided."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides what a search computes."""

    kind: Literal["tune", "sweep"]
    """`tune` stops poor trials early, `sweep` runs all to their ends."""
    base: dict[str, Any]
    """The configuration that trials change, as plain data."""
    space: dict[str, Any]
    """Content of the space file."""
    metric: str
    """A key of `METRICS`."""
    search_seed: int
    """Decides what is drawn; the trials' own `seed` is a field of the configuration."""
    grace_epochs: int
    """Epochs that every trial gets."""
    reduction: float
    """At each milestone one trial in so many goes on."""
    trials: list[Trial]
    """All of them, by index."""

    @property
    def sign(self) -> float:
        """1 where more of the metric is better, -1 where less is."""
        return 1.0 if METRICS[self.metric] == "max" else -1.0

    def value(self, epoch: Epoch) -> float:
        """The metric at an epoch's end. What is not finite (a loss that has diverged) is worse than any number."""
        value = float(epoch[self.metric])
        # A number all the same: ASHA interpolates between values, and with an infinite one would stop no trial.
        return value if math.isfinite(value) else -sys.float_info.max * self.sign


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The state of a trial."""

    trial: Trial
    status: Status
    epochs: list[Epoch] = field(default_factory=list)
    """What it reported, by epoch."""
    exit_code: int | None = None
    """Of its `train`; None where the search stopped it or it never ran."""
    problem: str = ""
    """Why it failed."""
    seconds: float = 0.0
    """Time it took, of this search's last attempt at it."""

    @property
    def last(self) -> Epoch:
        """What it reported last; empty before its first epoch's end."""
        return self.epochs[-1] if self.epochs else {}

    @property
    def counts(self) -> bool:
        """True if it can be the best: it has an epoch to show, and ran to its end or was stopped."""
        return self.status in ("complete", "stopped") and bool(self.epochs)


class Ledger:
    """A search's folder, and what is known of its trials. Only the search writes to it; the command holds the lease."""

    def __init__(self, folder: Folder, plan: Plan, retry_failed: bool = False) -> None:
        """Look how far the search is; nothing is written yet.

        Args:
            folder: of the search.
            plan: what the command asks for.
            retry_failed: forget the outcomes of trials that failed.

        Raises:
            UsageError: the folder has another search.
            DataIntegrityError: what is there does not read.
        """
        self.folder, self.plan = folder, plan
        kept = _read(folder, PLAN)
        if kept is not None:
            _refuse_another(kept, plan, folder.uri)
        self.outcomes: dict[str, Outcome] = {}
        """Of the trials that have ended, by name."""
        begun = plan.trials if kept else []
        with ThreadPoolExecutor(READERS) as pool:  # hundreds of small objects, each of which costs its latency
            records = pool.map(lambda trial: _read(folder.child(trial.name), OUTCOME), begun)
        for trial, record in zip(begun, records, strict=True):
            if record is not None and not (retry_failed and record["status"] == "failed"):
                self.outcomes[trial.name] = Outcome(**{**record, "trial": trial})
        self.pasts = {trial.name: _past(folder.child(trial.name)) if kept else [] for trial in self.left}
        """Epochs of the trials that go on, by name."""

    def begin(self) -> None:
        """Write the plan down: from here on the folder has this search."""
        _write(self.folder, PLAN, {"schema": SCHEMA, **asdict(self.plan)})

    @property
    def left(self) -> list[Trial]:
        """The trials that have no outcome."""
        return [trial for trial in self.plan.trials if trial.name not in self.outcomes]

    def close(self, outcome: Outcome) -> None:
        """Write down how a trial ended; from here it is not run again."""
        _write(self.folder.child(outcome.trial.name), OUTCOME, asdict(outcome))
        self.outcomes[outcome.trial.name] = outcome

    def state(self) -> list[Outcome]:
        """Every trial's outcome, by index; of those that have none, what they had reported when they last ran."""
        return [
            self.outcomes.get(trial.name)
            or Outcome(trial=trial, status="unfinished", epochs=self.pasts.get(trial.name, []))
            for trial in self.plan.trials
        ]


def measured(record: Mapping[str, Any]) -> dict[str, float]:
    """Measurements at an epoch's end, from a record of `train`."""
    return {
        name: float(value) for name, value in record.items() if name == "epoch" or name.startswith(("train/", "val/"))
    }


def ranking(plan: Plan, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Best first, by the last epoch: trials that ran to their end, those that were stopped, then the others."""

    def key(outcome: Outcome) -> tuple[int, float, float, str]:
        if not outcome.counts:
            return 2, 0.0, 0.0, outcome.trial.name
        # Few validation images make equal accuracies, which the loss still tells apart.
        value, loss = -plan.sign * plan.value(outcome.last), outcome.last["val/loss"]
        return outcome.status == "stopped", value, math.inf if math.isnan(loss) else loss, outcome.trial.name

    return sorted(outcomes, key=key)


def best(ranked: Sequence[Outcome]) -> Outcome | None:
    """The best trial that ran to its end, or, where none did, the best that was stopped."""
    return ranked[0] if ranked and ranked[0].counts else None


def _refuse_another(kept: dict[str, Any], plan: Plan, uri: str) -> None:
    ours = json.loads(json.dumps({"schema": SCHEMA, **asdict(plan)}))
    # More samples of the same space are the same search: those it has already are the first of them.
    fewer = len(ours["trials"]) < len(kept.get("trials", ()))
    given, begun = _fields(ours), _fields(kept)
    differing = [name for name in given | begun if given.get(name) != begun.get(name)]
    if not differing and not fewer and ours["trials"][: len(kept["trials"])] == kept["trials"]:
        return
    if fewer and not differing:
        said = f"it has {counted(len(kept['trials']), 'trial')}, {len(ours['trials'])} asked for"
    else:
        both = (f"{name} is {given.get(name)!r}, that search's is {begun.get(name)!r}" for name in differing)
        said = "; ".join(both) or "trials differ"
    raise UsageError(
        f"{uri} has another search: {said}.", "Choose another --run name, or give the values that search began with."
    )


def _fields(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a written plan except its trials, one level deep: `base.epochs`, `space.seed`, `metric`."""
    parts = ("base", "space")
    nested = {f"{part}.{name}": value for part in parts for name, value in plan.get(part, {}).items()}
    return nested | {name: value for name, value in plan.items() if name not in (*parts, "trials")}


def _past(folder: Folder) -> list[Epoch]:
    """Epochs of a trial that goes on, as of the commit of its newest checkpoint."""
    return [measured(record) for record in history(folder) if record["event"] == "epoch"]


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    try:
        return json.loads(folder.read(name))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataIntegrityError(
            f"{folder.uri}/{name} is damaged: {error}.", "Search under another --run name, or delete that file."
        ) from error


def _write(folder: Folder, name: str, content: dict[str, Any]) -> None:
    folder.write(name, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
