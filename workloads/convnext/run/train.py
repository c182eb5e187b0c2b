"""The command `train`: from arguments to a run, and from its records to a table, a plot and JSON lines.

A run is its name. Whatever was killed, the same command with the same `--run` resumes from the newest valid checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from workloads import dry_run, run_name
from workloads.cluster import run_beat, session
from workloads.command_parser import seconds
from workloads.convnext import config as configuration
from workloads.convnext import fields
from workloads.convnext.config import TrainConfig
from workloads.convnext.images import location
from workloads.convnext.run import preview, report, standing
from workloads.convnext.run.run import Run
from workloads.environment import NODE_HOUR_VARIABLE, SUBMITTED_VARIABLE, ClusterEnvironment
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, BudgetError, InfeasibleError, UsageError
from workloads.reporting import cost, credentials, progress
from workloads.reporting.history import Record, history
from workloads.reporting.tracking import JournalFollower, Wandb, WandbMode, check_key, wandb_reader
from workloads.storage.folders import check_writable, locate
from workloads.storage.results import check_results

TUNED_FIELDS = ("data", "model", "epochs", "batch_size", "learning_rate", "seed")
"""Configuration fields that have a flag of the same name; the recipe sets the others."""

CPU_WORKERS = 2
"""Workers if there are no GPUs: the fewest that show that the distributed code works."""

IMPORTS = ("workloads.convnext.run.worker", "workloads.convnext.run.trainer")
"""Modules that each node imports once for all processes of a run: those that ranks need, and Ray Train's processes."""


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads train`."""
    add = parser.add_argument
    recipes = f"one of {', '.join(configuration.RECIPES)} (default %(default)s)"
    add("--recipe", type=configuration.known_recipe, default="digits_laptop", metavar="NAME", help=recipes)
    add("--run", metavar="NAME", help="name of the run; the same name again continues it (default: recipe and time)")
    add(
        "--data",
        metavar="PLACE",
        help="name below the data mount, path or gs:// address of an image folder, or synthetic",
    )
    add("--model", help=f"one of {', '.join(configuration.MODELS)}")
    add("--epochs", type=int, help="passes over the training images")
    add("--batch-size", type=int, help="images per optimiser step, over all workers together")
    add("--learning-rate", type=float, help="peak of the schedule")
    add("--seed", type=int, help="seed of initial weights, order and augmentation")
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="any other field of the recipe; repeatable")
    add(
        "--workers",
        metavar="N|MIN:MAX",
        help=f"number of workers, or its bounds (default: the GPUs of one node, {CPU_WORKERS} on CPUs)",
    )
    add(
        "--require-fabric",
        action=argparse.BooleanOptionalAction,
        help="check RDMA between the nodes first, and refuse to train on a bad fabric (default: where the stack "
        "promises RDMA and the run takes several nodes)",
    )
    add(
        "--max-usd",
        type=float,
        metavar="USD",
        help="what the run's nodes may cost, all attempts together, at the stack's list price or "
        f"{NODE_HOUR_VARIABLE}; then it saves a checkpoint and stops",
    )
    add("--storage", metavar="PLACE", help="folder of all runs (default: the stack's runs bucket, else .oasis/runs)")
    add(
        "--results",
        metavar="DIR",
        default=".oasis/results",
        help="folder for table, plot, JSON lines (default %(default)s)",
    )
    add("--wandb", choices=get_args(WandbMode), default="auto", help="auto: online where a key is found, otherwise off")
    add("--wandb-key-file", type=Path, metavar="FILE", help="file with the W&B key; else environment, Secret Manager")
    add("--address", help="address of a running Ray (default: the one of this job, else one started for this run)")
    add("--timeout", type=seconds, default=1800, metavar="SECONDS", help="longest wait for capacity (%(default)g)")
    dry_run.add_dry_run_arguments(parser)


def run_train(args: argparse.Namespace) -> int:
    """Train as the arguments say; returns the exit code.

    Raises:
        WorkloadError: with the matching exit code.
        EnvironmentContractError: the cluster's variables are incomplete.
    """
    place = session.prepare(args.address)
    if args.dry_run:
        return explain_train(args, place)
    run = plan(args, place)
    if (summary := standing.finished(run.folder, run.config, progress.note)) is not None:
        check_results(run.results)
        progress.note(f"all epochs ({run.config.epochs}) of run {run.name} are complete; raise --epochs to train on")
        _conclude(run, summary)
        return EXIT_OK
    _refuse_spent(run)
    check_key(args.wandb, args.wandb_key_file, place.wandb_secret)
    if place.embedded and run.config.data == location.DIGITS:
        location.provide_digits(progress.note)
    if unseen := location.check_data(run.config.data, here=place.embedded):
        progress.note(unseen)
    location.check_batch(run.config.data, run.config.batch_size, here=place.embedded)
    check_writable(run.folder)
    check_results(run.results)
    with run_beat.alone(run.folder, run.name, run.attempt, progress.note, embedded=place.embedded):
        return _train(run, place, args)


def _train(run: Run, place: session.Place, args: argparse.Namespace) -> int:
    wandb = wandb_reader(
        args.wandb,
        run.name,
        run.config.to_dict(),
        run.results / "wandb",
        args.wandb_key_file,
        place.wandb_secret,
        progress.note,
        lambda: history(run.folder),
    )
    progress.note(f"run {run.name}: ConvNeXt {run.config.model} on {run.config.data}, {run.team}")
    progress.note(f"checkpoints and results: {run.folder.uri}")
    try:
        # From here on `wandb` has the key; processes of an embedded Ray would inherit this process's environment.
        with credentials.hidden(), session.connect(place, cpus=run.workers, imports=IMPORTS), _following(run, wandb):
            # This imports Ray, and `prepare` had to come before that.
            from workloads.convnext.run import driver

            summary = driver.fit(run)
            progress.note("trained; ending the workers, then writing table and plot")
    except KeyboardInterrupt:
        progress.note(f"interrupted; the same command with --run {run.name} {standing.prospect(run.folder)}")
        return EXIT_INTERRUPTED
    _conclude(run, summary)
    return EXIT_OK


def explain_train(args: argparse.Namespace, place: session.Place) -> int:
    """Print the values that `train` would use in a place; returns the exit code.

    Raises:
        WorkloadError: as `plan`, `location.check_batch` and `standing.finished`.
    """
    run = plan(args, place)
    if not place.told_by:  # a client cannot see the data
        location.check_batch(run.config.data, run.config.batch_size, here=place.embedded)
    if place.embedded and not args.json:
        _refuse_spent(run)
        standing.finished(run.folder, run.config, progress.note)
    settings = dry_run.explain(args, add_train_arguments, preview.of_run(args, run, place))
    return dry_run.show(settings, run.bundles, run.strategy, args.json)


def check_train(args: argparse.Namespace) -> TrainConfig:
    """The run's configuration.

    Raises:
        UsageError: a value that no run can have, in any place.
    """
    if args.run is not None:
        run_name.check("--run", args.run)
    changes = {name: getattr(args, name) for name in TUNED_FIELDS} | fields.assigned(args.set, TUNED_FIELDS)
    config = configuration.from_recipe(args.recipe, **changes)
    _workers(args.workers, CPU_WORKERS, config.batch_size)
    return config


def plan(args: argparse.Namespace, place: session.Place) -> Run:
    """The run that the arguments and the place define.

    Raises:
        UsageError: a value that no run can have.
    """
    config = check_train(args)
    name = run_name.unnamed(config.recipe.replace("_", "-")) if args.run is None else args.run
    cluster = place.environment
    gpus = cluster.gpus_per_node if cluster else 0
    least, most = _workers(args.workers, gpus or CPU_WORKERS, config.batch_size)
    run = Run(
        name=name,
        attempt=f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 1_000_000_000:09d}",
        config=config,
        folder=locate(args.storage or (cluster.runs_uri if cluster else ".oasis/runs")).child(name),
        results=Path(args.results).expanduser().absolute() / name,
        workers=most,
        least_workers=least,
        gpus_per_node=gpus,
        gpu_max_nodes=cluster.gpu_max_nodes if cluster else 0,
        gpu_queue_nodes=cluster.gpu_queue_nodes if cluster else 0,
        timeout=args.timeout,
        node_hour_usd=cost.node_hour_usd(cluster, gpus, {} if place.told_by else os.environ),
        own_nodes=not {"--queue", "--ray-job"}.isdisjoint(os.environ.get(SUBMITTED_VARIABLE, "").split()),
        max_usd=args.max_usd,
    )
    _check_budget(run)
    return dataclasses.replace(run, promise=_promise(args.require_fabric, cluster, run.nodes(most)))


def _check_budget(run: Run) -> None:
    """Refuse a budget that cannot be kept.

    Raises:
        UsageError: it is not an amount, or the price of a node is not known.
    """
    if run.max_usd is None:
        return
    if not 0 < run.max_usd < math.inf:
        raise UsageError(
            f"--max-usd is {run.max_usd:g}; it must be an amount of USD above 0.", "Leave it out for no limit."
        )
    if run.node_hour_usd is None:
        raise UsageError(
            f"--max-usd is {run.max_usd:g}, but what an hour of a node costs here is not known.",
            f"Set {NODE_HOUR_VARIABLE} to it, in USD (for a job with `submit --env`). Jobs on a stack's GPUs know the "
            "list price, once `make prices` has read that of its region and `pulumi up` was run since.",
        )


def _refuse_spent(run: Run) -> None:
    """Refuse to start if the run's budget is spent.

    Raises:
        BudgetError: it is spent.
    """
    if run.max_usd is None:
        return
    stays = cost.stays(run.folder)
    if cost.spent(stays, run.max_usd):
        raise BudgetError(
            f"run {run.name} has cost {cost.usd(stays):,.2f} USD, and --max-usd is {run.max_usd:g}.",
            "Give a higher --max-usd to go on; its checkpoints are kept.",
        )


def _promise(given: bool | None, cluster: ClusterEnvironment | None, nodes: int) -> ClusterEnvironment | None:
    """The stack whose promise is to be checked, or None for no check.

    Raises:
        InfeasibleError: the check was asked for, but the stack promises nothing.
    """
    promised = cluster is not None and cluster.rdma_nics > 0
    if given and not promised:
        raise InfeasibleError(
            "--require-fabric was given; "
            + ("this stack's nodes have no RDMA NICs." if cluster else "outside a stack, RDMA is not promised."),
            "Leave it out: there is no fabric to check.",
        )
    return cluster if given or (given is None and promised and nodes > 1) else None


def _workers(given: str | None, default: int, batch_size: int) -> tuple[int, int]:
    """The fewest and the most workers that `--workers` allows."""
    if given is None:
        return min(default, batch_size), min(default, batch_size)
    first, colon, second = given.partition(":")
    numbers = [int(number) if number.isdecimal() else 0 for number in ((first, second) if colon else (first, first))]
    least, most = numbers
    if not 1 <= least <= most <= batch_size:
        raise UsageError(
            f"--workers is {given}; it must be a number or MIN:MAX, from 1 to {batch_size}, the images of a batch.",
            "Leave it out for the place's own number.",
        )
    return least, most


@contextmanager
def _following(run: Run, wandb: Wandb | None) -> Iterator[None]:
    followers = [JournalFollower(run.journal, progress.Paced().emit, lambda: None, "progress")]
    if wandb is not None:
        followers.append(JournalFollower(run.journal, wandb.read, wandb.finish, "W&B"))
    try:
        yield
    finally:
        for problem in filter(None, [follower.close() for follower in followers]):
            progress.note(problem)


def _conclude(run: Run, summary: Record) -> None:
    facts = {
        "run": run.name,
        "recipe": run.config.recipe,
        "model": run.config.model,
        "data": run.config.data,
        **summary,
    }
    table, uri = report.publish(run.folder, run.results, facts)
    progress.note(f"\n{table}\n")
    if SUBMITTED_VARIABLE not in os.environ:  # in a job that folder is the job's own; whoever submitted it has a copy
        progress.note(f"table, plot and JSON lines: {run.results}")
    progress.emit({"event": "summary", **facts, "results_uri": uri})
