"""What a search leaves behind: a table, JSON lines, CSV and a plot, and the command that repeats the best trial."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from rich.console import Console
from rich.table import Column

from workloads import tables
from workloads.convnext.run.train import TUNED_FIELDS
from workloads.environment import SUBMITTED_VARIABLE
from workloads.storage.results import keep
from workloads.tune import plot
from workloads.tune.ledger import METRICS, Epoch, Outcome, Status, Trial, best
from workloads.tune.planning import Search

_COLUMNS = {"epoch": "g", **dict.fromkeys(METRICS, ".4f")}
"""Numbers of a trial's last epoch that the table shows, and their formats."""


def command(search: Search, trial: Trial) -> str:
    """The command line that computes what a trial computed, where it did, under a run name of its own."""
    submitted = os.environ.get(SUBMITTED_VARIABLE)
    words = [] if submitted is None else ["submit", *shlex.split(submitted), "--"]
    words += ["train", "--run", f"{trial.name}-again", *search.train, *assignments(trial)]
    words += ["--storage", search.storage] if search.storage else []
    return shlex.join(["python", "-m", "workloads", *words])


def assignments(trial: Trial) -> list[str]:
    """Arguments of `train` for what a trial changes; numbers read back unchanged."""
    words: list[str] = []
    for name, value in trial.changes.items():
        if name in TUNED_FIELDS:
            words += [f"--{name.replace('_', '-')}", str(value)]
        else:
            words += ["--set", f"{name}={json.dumps(value) if isinstance(value, bool) else value}"]
    return words


def render(search: Search, ranked: Sequence[Outcome], color: bool = False) -> str:
    """The table, best trial first, and beneath it why trials failed; on a terminal with colours."""
    numbers = ("epochs", *METRICS, "seconds")
    headings = ("trial", "state", *numbers, *search.space.varied)
    columns = (Column(name, no_wrap=True, justify="right" if name in numbers else "left") for name in headings)
    table = tables.plain(*columns)
    for outcome in ranked:
        is_best = outcome is best(ranked)
        table.add_row(
            outcome.trial.name.removeprefix(f"{search.name}-"),
            "best" if is_best and outcome.status == "complete" else outcome.status,
            *(f"{outcome.last[name]:{form}}" if outcome.epochs else "" for name, form in _COLUMNS.items()),
            f"{outcome.seconds:.0f}" if outcome.seconds else "",
            *(_short(outcome.trial.changes[field]) for field in search.space.varied),
            style="bold green" if is_best else {"failed": "red", "unfinished": "dim"}.get(outcome.status, ""),
        )
    # Wider than any terminal, which wraps whole lines: they read more easily than wrapped cells.
    console = Console(file=io.StringIO(), width=tables.WIDE, force_terminal=color, no_color=not color, markup=False)
    lines = tables.text(table, console).splitlines()
    return "\n".join([*lines, *(f"{outcome.trial.name}: {outcome.problem}" for outcome in ranked if outcome.problem)])


def files(search: Search, ranked: Sequence[Outcome]) -> dict[str, bytes]:
    """Every file of the results, by name."""
    first, varied = best(ranked), search.space.varied
    rows = [row(search, outcome) for outcome in ranked]
    found = {
        "table.txt": f"{search.plan.kind} {search.name}\n\n{render(search, ranked)}\n".encode(),
        "trials.jsonl": "".join(json.dumps(one, sort_keys=True) + "\n" for one in rows).encode(),
        "trials.csv": _csv(rows, varied).encode(),
        "summary.json": (json.dumps(summary(search, ranked), indent=1, sort_keys=True) + "\n").encode(),
    }
    if first is not None and varied and math.isfinite(first.last[search.plan.metric]):
        found["parallel.png"] = plot.draw(search, ranked)
    if any(outcome.epochs for outcome in ranked):
        found["curves.png"] = plot.curves(search, ranked)
    return found


def publish(search: Search, ranked: Sequence[Outcome]) -> str:
    """Write the files beside the trials, in the search's folder, and into a local one; returns the former's address.

    Raises:
        PlaceError: a place does not take them; what the bucket took is there.
    """
    kept = search.folder.child("results")
    keep(files(search, ranked), kept, search.results)
    return kept.uri


def row(search: Search, outcome: Outcome) -> dict[str, Any]:
    """One trial as plain data."""
    return {
        "trial": outcome.trial.name,
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "problem": outcome.problem,
        "seconds": round(outcome.seconds, 1),
        "epoch": outcome.last.get("epoch"),
        **{metric: _finite(outcome.last).get(metric) for metric in METRICS},
        "changes": outcome.trial.changes,
        "epochs": [_finite(epoch) for epoch in outcome.epochs],
        "command": command(search, outcome.trial),
    }


def summary(search: Search, ranked: Sequence[Outcome]) -> dict[str, Any]:
    """The search as a whole."""
    counts = Counter(outcome.status for outcome in ranked)
    first = best(ranked)
    return {
        "search": search.name,
        "kind": search.plan.kind,
        "metric": search.plan.metric,
        "trials": {status: counts[status] for status in get_args(Status)},
        "best": None if first is None else row(search, first),
    }


def _csv(rows: Sequence[dict[str, Any]], varied: Sequence[str]) -> str:
    stream = io.StringIO()
    names = ["trial", "status", "exit_code", "epoch", *METRICS, "seconds"]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*names, *varied, "problem"])
    for one in rows:
        writer.writerow([*(one[name] for name in names), *(one["changes"][name] for name in varied), one["problem"]])
    return stream.getvalue()


def _finite(epoch: Epoch) -> dict[str, float | None]:
    # JSON has no word for what is no number (RFC 8259, section 6).
    return {name: value if math.isfinite(value) else None for name, value in epoch.items()}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
