"""The commands `tune` and `sweep`: from a space file to trials, and from their outcomes to a table and a plot.

Both are one search; `tune` draws trials and stops poor ones early, `sweep` runs every combination to its end.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, get_args

from workloads import dry_run
from workloads.cluster import session
from workloads.convnext import config as configuration
from workloads.convnext.images import location
from workloads.environment import SUBMITTED_VARIABLE
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, WorkloadError, WorkloadFailedError
from workloads.reporting import credentials, progress
from workloads.reporting.history import history
from workloads.reporting.tracking import WandbMode
from workloads.storage.folders import Folder
from workloads.tune import concurrency, preview, report
from workloads.tune.ledger import METRICS, Begun, Epoch, Ledger, Outcome, Trial, measured
from workloads.tune.planning import Kind, Search, configurations, plan


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads tune`."""
    _add_arguments(parser)
    group = parser.add_argument_group("search")
    group.add_argument("--samples", type=int, default=10, metavar="N", help="trials to draw (default %(default)s)")
    group.add_argument("--search-seed", type=int, default=0, metavar="N", help="of the draw (default %(default)s)")
    group.add_argument(
        "--grace-epochs", type=int, default=1, metavar="N", help="epochs that every trial gets (default %(default)s)"
    )
    group.add_argument(
        "--reduction",
        type=float,
        default=3,
        metavar="F",
        help="one in so many goes on at each milestone (default %(default)g)",
    )


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads sweep`."""
    _add_arguments(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument(
        "--space", type=Path, required=True, metavar="FILE", help="YAML: fields of the configuration, values or ranges"
    )
    what.add_argument("--run", metavar="NAME", help="name of the search; the same name again continues it")
    what.add_argument("--recipe", default="digits_laptop", help=f"one of {', '.join(configuration.RECIPES)}")
    what.add_argument("--data", metavar="PLACE", help="as of train")
    what.add_argument("--epochs", type=int, help="as of train")
    what.add_argument("--metric", choices=METRICS, default="val/accuracy", help="what counts (default %(default)s)")
    what.add_argument("--retry-failed", action="store_true", help="when continuing, run failed trials again")
    where = parser.add_argument_group("where")
    where.add_argument("--workers", type=int, metavar="N", help="of each trial (default: GPUs of a node, 1 on CPUs)")
    where.add_argument("--concurrency", type=int, metavar="N", help="trials at a time (default: as many as fit)")
    where.add_argument("--storage", metavar="PLACE", help="folder of all runs (default: the runs bucket, .oasis/runs)")
    where.add_argument("--results", type=Path, default=Path(".oasis/results"), metavar="DIR", help="(%(default)s)")
    where.add_argument("--wandb", choices=get_args(WandbMode), default="auto", help="of each trial, as of train")
    where.add_argument("--wandb-key-file", type=Path, metavar="FILE", help="as of train")
    where.add_argument("--address", help="of a running Ray (default: the job's, else one started for the search)")
    where.add_argument(
        "--timeout",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="longest wait of a trial for its place",
    )
    dry_run.add_dry_run_arguments(parser, "the trials, every other effective value and where it came from")


def run_tune(args: argparse.Namespace) -> int:
    """Search at random with early stopping; returns the exit code.

    Raises:
        WorkloadError: with the exit code that fits.
    """
    return _run("tune", args)


def run_sweep(args: argparse.Namespace) -> int:
    """Run every combination; returns the exit code.

    Raises:
        WorkloadError: with the exit code that fits.
    """
    return _run("sweep", args)


def explain_tune(args: argparse.Namespace, place: session.Place) -> int:
    """Print what `tune` would do in a place; returns the exit code, and raises as `plan`."""
    return _explain("tune", args, place)


def explain_sweep(args: argparse.Namespace, place: session.Place) -> int:
    """Print what `sweep` would do in a place; returns the exit code, and raises as `plan`."""
    return _explain("sweep", args, place)


def _explain(kind: Kind, args: argparse.Namespace, place: session.Place) -> int:
    return preview.show(
        plan(kind, args, place), args, add_tune_arguments if kind == "tune" else add_sweep_arguments, place
    )


def _run(kind: Kind, args: argparse.Namespace) -> int:
    place = session.prepare(args.address)
    if args.dry_run:
        return _explain(kind, args, place)
    search = plan(kind, args, place)
    trials = search.plan.trials
    progress.note(preview.title(search))
    every = sorted({config.data for config in configurations(search)})
    if place.embedded and every == [location.DIGITS]:
        location.provide_digits(progress.note)
    for data in every:
        if unseen := location.check_data(data, place.embedded):
            progress.note(unseen)
    location.check_storage(search.folder)
    location.check_results(search.results)
    ledger = Ledger(search.folder)
    outcomes = ledger.open(search.plan, args.retry_failed)
    left = [trial for trial in trials if trial.name not in outcomes]
    if len(left) < len(trials):
        progress.note(f"{len(trials) - len(left)} of them have ended already")
    pasts = {trial.name: _past(search.folder.child(trial.name)) for trial in left}
    progress.note(f"trials and results: {search.folder.uri}")
    verdict: WorkloadError | None = None
    if left:
        try:
            outcomes, verdict = _search(args, place, search, ledger, outcomes, pasts)
        except KeyboardInterrupt:  # the second one; what has ended is in the ledger, and the rest is unfinished
            outcomes = ledger.open(search.plan, retry_failed=False)
    return _conclude(search, outcomes, pasts, verdict)


def _past(folder: Folder) -> list[Epoch]:
    """Last report of a trial that goes on, as of the commit of its newest checkpoint."""
    return [measured(record) for record in history(folder) if record["event"] == "epoch"]


def _search(
    args: argparse.Namespace,
    place: session.Place,
    search: Search,
    ledger: Ledger,
    outcomes: dict[str, Outcome],
    pasts: dict[str, list[Epoch]],
) -> tuple[dict[str, Outcome], WorkloadError | None]:
    at_most = concurrency.embedded(search.workers) if place.embedded else None
    # Ray warns of the many processes that run beside the workers of each trial, which take no CPU.
    os.environ.setdefault("RAY_worker_maximum_startup_concurrency", str((at_most or 1) * (search.workers + 4)))
    # A trial reads the key where the search did: from the environment that this process was started with.
    with (
        credentials.hidden(),
        session.connect(place, cpus=(at_most or 1) * search.workers),
    ):
        # Import Ray, which `prepare` had to come before.
        import ray

        from workloads.cluster import run_lock
        from workloads.tune.asha import Milestones
        from workloads.tune.search import PROGRESS_SECONDS, Runner, TrialQueue

        fitting = at_most or concurrency.of_cluster(search.workers, place.environment)
        limit = concurrency.choose(args.concurrency, fitting, search.workers, progress.note)
        address = ray.get_runtime_context().gcs_address

        def work(trial: Trial) -> tuple[list[str], Path]:
            what = ["train", "--run", trial.name, *search.train, *report.assignments(trial)]
            return what + _place_arguments(args, search, address), search.results / trial.name / "train.log"

        with run_lock.hold(search.folder.uri, search.name):
            begun = Begun(plan=search.plan, ledger=ledger, outcomes=outcomes, pasts=pasts)
            trials = TrialQueue(begun, limit, progress.note, lambda trial: check_place(search, place, trial))
            every = f"after it, a line every {PROGRESS_SECONDS:.0f} s"
            progress.wait(f"starting the first trials, which takes 5 to 20 s; {every}")
            Runner(trials, Milestones(begun) if search.plan.kind == "tune" else None, address, work).run()
    return trials.outcomes, trials.verdict


def check_place(search: Search, place: session.Place, trial: Trial) -> None:
    """Look whether what a trial needs beside capacity is there, as far as it can be seen from here.

    Raises:
        WorkloadError: its data or the search's storage is out of reach.
    """
    location.check_data(trial.changes.get("data", search.plan.base["data"]), place.embedded)
    location.check_storage(search.folder)


def _place_arguments(args: argparse.Namespace, search: Search, address: str) -> list[str]:
    words = ["--storage", search.folder.uri, "--results", str(search.results), "--address", address]
    words += ["--timeout", str(args.timeout), "--wandb", args.wandb]
    return words + (["--wandb-key-file", str(args.wandb_key_file.absolute())] if args.wandb_key_file else [])


def _conclude(
    search: Search, outcomes: dict[str, Outcome], pasts: dict[str, list[Epoch]], verdict: WorkloadError | None
) -> int:
    everyone = [
        outcomes.get(trial.name) or Outcome(trial=trial, status="unfinished", epochs=pasts.get(trial.name, []))
        for trial in search.plan.trials
    ]
    found = report.Report(
        name=search.name,
        plan=search.plan,
        outcomes=everyone,
        varied=search.space.varied,
        logarithmic=search.space.logarithmic,
        repeat=search.train,
    )
    uri = report.publish(found, search.folder, search.results)
    terminal = sys.stdout.isatty() and os.environ.get(progress.FORM_VARIABLE) != "json"
    progress.note(f"\n{report.render(found, terminal)}\n")
    if found.best is not None:
        value = found.best.epochs[-1][search.plan.metric]
        progress.note(f"best trial {found.best.trial.name}: {search.plan.metric} {value:.4f}; repeat it with")
        progress.note(f"  {report.command(found, found.best)}")
    place = uri if SUBMITTED_VARIABLE in os.environ else search.results
    written: dict[str, Any] = {"event": "note", "text": f"table, JSON lines, CSV, plots: {place}"}
    progress.emit({**written, "results_uri": uri})
    if verdict is not None:
        raise verdict
    if any(outcome.status == "unfinished" for outcome in everyone):
        progress.note(f"interrupted; the same command with --run {search.name} goes on with the trials that are left")
        return EXIT_INTERRUPTED
    if found.best is None:
        raise _failure(everyone)
    return EXIT_OK


def _failure(outcomes: list[Outcome]) -> WorkloadError:
    """Explanation of a search in which no trial succeeded: the common reason, where there is one."""
    codes = {outcome.exit_code for outcome in outcomes}
    alike = next((kind for kind in WorkloadError.__subclasses__() if {kind.exit_code} == codes), WorkloadFailedError)
    return alike(
        f"{'all ' if len(outcomes) > 1 else ''}{progress.counted(len(outcomes), 'trial')} failed; the first: "
        f"{outcomes[0].problem}",
        "Correct that, then run the same command with --retry-failed.",
    )
