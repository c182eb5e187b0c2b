"""What a search leaves behind: a table, JSON lines, CSV and a plot, and the command that repeats the best trial."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads import tables
from workloads.convnext.run.train import TUNED_FIELDS
from workloads.environment import SUBMITTED_VARIABLE
from workloads.storage.folders import Folder
from workloads.tune import plot
from workloads.tune.ledger import METRICS, Epoch, Outcome, Plan, Trial, ranking


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished search, or as much of it as there is."""

    name: str
    """Of the search."""
    plan: Plan
    outcomes: Sequence[Outcome]
    """One for every trial."""
    varied: Sequence[str]
    """Fields that differ between trials."""
    logarithmic: frozenset[str]
    """Those of them that the plot shows by their logarithm."""
    repeat: Sequence[str]
    """Arguments of `train` that every repetition has: recipe, workers and the like."""

    @property
    def ranked(self) -> list[Outcome]:
        """Best first."""
        return ranking(self.plan, self.outcomes)

    @property
    def best(self) -> Outcome | None:
        """The best trial that ran to its end, or, where none did, the best that was stopped."""
        first = next(iter(self.ranked), None)
        return first if first is not None and first.status in ("complete", "stopped") and first.epochs else None


def command(report: Report, outcome: Outcome) -> str:
    """The command line that computes what a trial computed, where it did, under a run name of its own."""
    submitted = os.environ.get(SUBMITTED_VARIABLE)
    words = [] if submitted is None else ["submit", *shlex.split(submitted), "--"]
    words += ["train", "--run", f"{outcome.trial.name}-again", *report.repeat, *assignments(outcome.trial)]
    return shlex.join(["python", "-m", "workloads", *words])


def assignments(trial: Trial) -> list[str]:
    """The arguments of `train` for what a trial changes; Python writes a number so that it reads back as the same."""
    words: list[str] = []
    for name, value in trial.changes.items():
        if name in TUNED_FIELDS:
            words += [f"--{name.replace('_', '-')}", str(value)]
        else:
            words += ["--set", f"{name}={json.dumps(value) if isinstance(value, bool) else value}"]
    return words


def render(report: Report, color: bool = False) -> str:
    """The table, best trial first, and beneath it why trials failed; on a terminal with colours."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("trial", "state", "epochs", *METRICS, "seconds", *report.varied):
        number = heading in METRICS or heading in ("epochs", "seconds")
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for outcome in report.ranked:
        best = report.best is not None and outcome.trial == report.best.trial
        style = "bold green" if best else {"failed": "red", "unfinished": "dim"}.get(outcome.status, "")
        last = outcome.epochs[-1] if outcome.epochs else {}
        table.add_row(
            outcome.trial.name.removeprefix(f"{report.name}-"),
            "best" if best and outcome.status == "complete" else outcome.status,
            f"{last['epoch']:g}" if last else "",
            *(f"{last[metric]:.4f}" if metric in last else "" for metric in METRICS),
            f"{outcome.seconds:.0f}" if outcome.seconds else "",
            *(_short(outcome.trial.changes[field]) for field in report.varied),
            style=style,
        )
    # Wider than any terminal, which wraps whole lines: they read more easily than wrapped cells.
    console = Console(file=io.StringIO(), width=tables.WIDE, force_terminal=color, no_color=not color, markup=False)
    lines = tables.text(table, console).splitlines()
    failed = [outcome for outcome in report.ranked if outcome.problem]
    return "\n".join([*lines, *(f"{outcome.trial.name}: {outcome.problem}" for outcome in failed)])


def files(report: Report) -> dict[str, bytes]:
    """Every file of the results, by name."""
    rows = [row(report, outcome) for outcome in report.ranked]
    best = report.best
    found = {
        "table.txt": f"{report.plan.kind} {report.name}\n\n{render(report)}\n".encode(),
        "trials.jsonl": "".join(json.dumps(one, sort_keys=True) + "\n" for one in rows).encode(),
        "trials.csv": _csv(rows, report.varied).encode(),
        "summary.json": (json.dumps(summary(report), indent=1, sort_keys=True) + "\n").encode(),
    }
    if best is not None and report.varied and math.isfinite(best.epochs[-1][report.plan.metric]):
        found["parallel.png"] = plot.draw(report.plan, report.ranked, report.varied, report.logarithmic, report.name)
    if any(outcome.epochs for outcome in report.outcomes):
        found["curves.png"] = plot.curves(report.plan, report.ranked, report.name)
    return found


def publish(report: Report, folder: Folder, results: Path) -> str:
    """Write the files beside the trials, in the search's folder, and into a local one; returns the former's address."""
    kept = folder.child("results")
    results.mkdir(parents=True, exist_ok=True)
    for name, content in files(report).items():
        (results / name).write_bytes(content)
        kept.write(name, content)
    return kept.uri


def row(report: Report, outcome: Outcome) -> dict[str, Any]:
    """One trial as plain data."""
    last = outcome.epochs[-1] if outcome.epochs else {}
    return {
        "trial": outcome.trial.name,
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "problem": outcome.problem,
        "seconds": round(outcome.seconds, 1),
        "epoch": last.get("epoch"),
        **{metric: _finite(last).get(metric) for metric in METRICS},
        "changes": outcome.trial.changes,
        "epochs": [_finite(epoch) for epoch in outcome.epochs],
        "command": command(report, outcome),
    }


def summary(report: Report) -> dict[str, Any]:
    """The search as a whole."""
    best = report.best
    counts = dict.fromkeys(("complete", "stopped", "failed", "unfinished"), 0)
    for outcome in report.outcomes:
        counts[outcome.status] += 1
    return {
        "search": report.name,
        "kind": report.plan.kind,
        "metric": report.plan.metric,
        "trials": counts,
        "best": None if best is None else row(report, best),
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
