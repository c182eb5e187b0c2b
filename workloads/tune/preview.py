"""`tune --dry-run` and `sweep --dry-run`: the trials, and the effective values of what they are trials of."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from workloads import dry_run
from workloads.cluster.session import Place
from workloads.convnext.run import preview as run_preview
from workloads.convnext.run import train
from workloads.dry_run import Settings
from workloads.reporting import progress
from workloads.tune import report
from workloads.tune.planning import Search

SHOWN = 20
"""Trials that are listed."""


def title(search: Search) -> str:
    """A search in one line."""
    varied = ", ".join(search.space.varied) or "nothing"
    return f"{search.plan.kind} {search.name}: {progress.counted(len(search.plan.trials), 'trial')} over {varied}"


def show(
    search: Search,
    args: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    place: Place,
) -> int:
    """Print the trials, and every value that they share or draw; returns the exit code.

    Args:
        search: as planned.
        args: of `tune` or `sweep`.
        add_arguments: the same command's.
        place: where Ray is.
    """
    trials = search.plan.trials
    one = _as_train(search, args)
    run = train.plan(one, place)
    known = run_preview.of_run(one, run, place)
    if "data" in search.space.varied:
        del known["data-place"]  # there are several
    settings = dry_run.explain(args, add_arguments, known) | _drawn(search, args.space)
    if args.json:
        changes = {trial.name: trial.changes for trial in trials}
        return dry_run.show(settings, run.bundles, run.strategy, as_json=True, trials=changes)
    progress.note(title(search))
    for trial in trials[:SHOWN]:
        progress.note(f"  {trial.name}: " + ", ".join(f"{name} {value}" for name, value in trial.changes.items()))
    if len(trials) > SHOWN:
        progress.note(f"  and {len(trials) - SHOWN} more")
    progress.note("\nof each trial:")
    return dry_run.show(settings, run.bundles, run.strategy, as_json=False)


def _as_train(search: Search, args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `train` that make the first trial, with the name and the folders of the search."""
    parser = argparse.ArgumentParser()
    train.add_train_arguments(parser)
    words = ["--run", search.name, *search.train, *report.assignments(search.plan.trials[0])]
    return parser.parse_args(words, argparse.Namespace(**vars(args)))


def _drawn(search: Search, file: Path) -> Settings:
    """Values that the space decides, whatever was typed."""
    found: Settings = {}
    for name, spec in search.plan.space.items():
        kind, values = next(iter(spec.items())) if isinstance(spec, dict) else ("choice", spec)
        flag = name.replace("_", "-")
        value = f"{kind} {json.dumps(values)}" if name in search.space.varied else search.space.fixed[name]
        found[flag] = (value, f"space {file}")
    return found
