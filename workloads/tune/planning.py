"""From the arguments of `tune` and `sweep` to a search in which every trial's configuration has been checked."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from workloads import run_name
from workloads.cluster import session
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.errors import UsageError
from workloads.storage.folders import Folder, locate
from workloads.tune.ledger import Plan, Trial
from workloads.tune.space import Space, parse, read

NAME_LENGTH = 52
"""Longest name of a search: `-`, a number of up to four digits and `-again` make names of its trials, 63 at most."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search as the arguments and the place make it."""

    name: str
    plan: Plan
    space: Space
    folder: Folder
    """Plan, trials and results, in the runs bucket."""
    results: Path
    """Results on this machine, and a folder for each trial."""
    workers: int
    """Of each trial."""
    storage: str
    """Of all runs, as `--storage` has it; empty for the place's own."""
    train: tuple[str, ...]
    """Arguments of `train` that say what every trial computes."""


def plan(args: argparse.Namespace, place: session.Place) -> Search:
    """The search that the arguments and the place make; every trial's configuration has been checked.

    Raises:
        UsageError: a value that no search can have.
    """
    kind, cluster = args.command, place.environment
    given = configuration.from_recipe(args.recipe, data=args.data, epochs=args.epochs)
    content = read(args.space)
    space = parse(content, given)
    base = dataclasses.replace(given, **space.fixed)
    name = args.run or run_name.unnamed(f"{kind}-{args.recipe.replace('_', '-')[:25]}")
    _check(args, name, space)
    changes = space.sample(args.samples, args.search_seed) if kind == "tune" else space.grid()
    workers = args.workers if args.workers is not None else (cluster.gpus_per_node if cluster else 0) or 1
    search = Search(
        name=name,
        plan=Plan(
            kind=kind,
            base=base.to_dict(),
            space=content,
            metric=args.metric,
            search_seed=args.search_seed if kind == "tune" else 0,
            grace_epochs=args.grace_epochs if kind == "tune" else 0,
            reduction=args.reduction if kind == "tune" else 0,
            trials=[Trial(name=f"{name}-{index:03d}", changes=change) for index, change in enumerate(changes)],
        ),
        space=space,
        folder=locate(args.storage or (cluster.runs_uri if cluster else ".oasis/runs")).child(name),
        results=args.results.expanduser().absolute() / name,
        workers=workers,
        storage=args.storage or "",
        train=_train_arguments(args, workers),
    )
    least = min(config.batch_size for config in configurations(search))
    if not 1 <= workers <= least:
        raise UsageError(
            f"--workers is {workers}; a batch of {least} images can be shared by 1 to {least}.", "Give another number."
        )
    return search


def _check(args: argparse.Namespace, name: str, space: Space) -> None:
    run_name.check("--run", name)
    if len(name) > NAME_LENGTH:
        raise UsageError(f"--run has {len(name)} letters; at most {NAME_LENGTH} are allowed.", "Choose a shorter name.")
    counts = [("--workers", args.workers), ("--concurrency", args.concurrency)]
    if args.command == "tune":
        counts += [("--samples", args.samples), ("--grace-epochs", args.grace_epochs)]
        if not args.reduction > 1:
            raise UsageError(f"--reduction is {args.reduction:g}.", "Give a number above 1.")
        if "epochs" in space.varied:
            raise UsageError(
                "epochs cannot be varied by tune, which gives good trials more of them than poor ones.",
                "Give it one value, or use `sweep`.",
            )
    for flag, value in counts:
        if value is not None and value < 1:
            raise UsageError(f"{flag} is {value}.", "Give at least 1.")


def _train_arguments(args: argparse.Namespace, workers: int) -> tuple[str, ...]:
    words = ["--recipe", args.recipe, "--workers", str(workers)]
    words += ["--data", args.data] if args.data is not None else []
    words += ["--epochs", str(args.epochs)] if args.epochs is not None else []
    return tuple(words)


def configurations(search: Search) -> list[TrainConfig]:
    """Configuration of each trial."""
    base = TrainConfig(**search.plan.base)
    return [dataclasses.replace(base, **trial.changes) for trial in search.plan.trials]
