"""The commands `tune` and `sweep`: from a space file to trials, and from their outcomes to a table and a plot.

Both are one search; `tune` draws trials and stops poor ones early, `sweep` runs every combination to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from workloads import dry_run
from workloads.cluster import run_beat, run_lock, session
from workloads.command_parser import seconds
from workloads.convnext import config as configuration
from workloads.convnext.images import location
from workloads.convnext.run import preview, train
from workloads.dry_run import Settings
from workloads.environment import SUBMITTED_VARIABLE
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, PlaceError, WorkloadError, WorkloadFailedError
from workloads.reporting import credentials, progress
from workloads.reporting.tracking import WandbMode, check_key
from workloads.storage.folders import check_writable
from workloads.storage.results import check_results
from workloads.tune import concurrency, report
from workloads.tune.ledger import METRICS, Ledger, Outcome, Trial, best, ranking
from workloads.tune.planning import Search, configurations, plan

SHOWN = 20
"""Trials that a dry run lists."""


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads sweep`."""
    what = parser.add_argument_group("what")
    what.add_argument(
        "--space",
        type=Path,
        required=True,
        metavar="FILE",
        help="YAML: fields of the configuration; values, lists of them, or {range: [first, last, step]}",
    )
    what.add_argument("--run", metavar="NAME", help="name of the search; the same name again continues it")
    recipes = f"one of {', '.join(configuration.RECIPES)}"
    what.add_argument("--recipe", type=configuration.known_recipe, default="digits_laptop", help=recipes)
    what.add_argument("--data", metavar="PLACE", help="as for train")
    what.add_argument("--epochs", type=int, help="as for train")
    what.add_argument(
        "--metric", choices=METRICS, default="val/accuracy", help="what ranks trials (default %(default)s)"
    )
    what.add_argument("--retry-failed", action="store_true", help="when continuing, run failed trials again")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--workers", type=int, metavar="N", help="workers of a trial (default: GPUs of a node, 1 on CPUs)"
    )
    where.add_argument("--concurrency", type=int, metavar="N", help="trials at a time (default: as many as fit)")
    where.add_argument("--storage", metavar="PLACE", help="folder of all runs (default: the runs bucket, .oasis/runs)")
    where.add_argument("--results", type=Path, default=Path(".oasis/results"), metavar="DIR", help="(%(default)s)")
    where.add_argument("--wandb", choices=get_args(WandbMode), default="auto", help="of each trial, as for train")
    where.add_argument("--wandb-key-file", type=Path, metavar="FILE", help="as for train")
    where.add_argument("--address", help="address of a running Ray (default: the job's, else one started here)")
    where.add_argument(
        "--timeout",
        type=seconds,
        default=1800,
        metavar="SECONDS",
        help="longest wait of a trial for its resources (%(default)g)",
    )
    dry_run.add_dry_run_arguments(parser, "the trials, every other effective value and where it came from")


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads tune`."""
    add_sweep_arguments(parser)
    group = parser.add_argument_group("search")
    group.add_argument("--samples", type=int, default=10, metavar="N", help="trials to draw (default %(default)s)")
    group.add_argument("--search-seed", type=int, default=0, metavar="N", help="seed of the draw (default %(default)s)")
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


def run_tune(args: argparse.Namespace) -> int:
    """Search at random with early stopping, or for `sweep` run every combination; returns the exit code.

    Raises:
        WorkloadError: with the exit code that fits.
    """
    place = session.prepare(args.address)
    if args.dry_run:
        return explain_tune(args, place)
    search = plan(args, place)
    progress.note(_title(search))
    every = sorted({config.data for config in configurations(search)})
    if place.embedded and every == [location.DIGITS]:
        location.provide_digits(progress.note)
    for data in every:
        if unseen := location.check_data(data, place.embedded):
            progress.note(unseen)
    check_writable(search.folder)
    check_results(search.results)
    began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    with run_beat.alone(search.folder, search.name, began, progress.note, embedded=place.embedded):
        ledger = Ledger(search.folder, search.plan, args.retry_failed)
        if ledger.outcomes:
            progress.note(f"{len(ledger.outcomes)} of them have ended already")
        progress.note(f"trials and results: {search.folder.uri}")
        verdict: WorkloadError | None = None
        if ledger.left:
            if sys.platform != "linux":  # prctl(2) and proc(5), in `child` and `processes`
                raise PlaceError(
                    "a search needs Linux, where its trials end with it however it ends; this is another system.",
                    f"Run it as a job: `python -m workloads submit --stack STACK -- {search.plan.kind} ...`.",
                )
            check_key(args.wandb, args.wandb_key_file, place.wandb_secret)
            with suppress(KeyboardInterrupt):  # the second one; what has ended is in the ledger, the rest is unfinished
                verdict = _search(args, place, search, ledger)
        return _conclude(search, ledger, verdict)


run_sweep = run_tune


def check_tune(args: argparse.Namespace) -> None:
    """Refuse a search that no place could run; raises as `plan`. An absolute path may be one of where the job runs."""
    if args.space.exists() or not args.space.is_absolute():
        plan(args, session.Place(address=None, environment=None))


check_sweep = check_tune


def explain_tune(args: argparse.Namespace, place: session.Place) -> int:
    """Print the trials, and every value that they share or draw; returns the exit code, and raises as `plan`."""
    search = plan(args, place)
    trials = search.plan.trials
    one = _as_train(search, args)
    run = train.plan(one, place)
    known = preview.of_run(one, run, place)
    if "data" in search.space.varied:
        del known["data-place"]  # there are several
    add_arguments = add_tune_arguments if search.plan.kind == "tune" else add_sweep_arguments
    settings = dry_run.explain(args, add_arguments, known) | _drawn(search, args.space)
    if args.json:
        changes = {trial.name: trial.changes for trial in trials}
        return dry_run.show(settings, run.bundles, run.strategy, as_json=True, trials=changes)
    progress.note(_title(search))
    for trial in trials[:SHOWN]:
        progress.note(f"  {trial.name}: " + ", ".join(f"{name} {value}" for name, value in trial.changes.items()))
    if len(trials) > SHOWN:
        progress.note(f"  and {len(trials) - SHOWN} more")
    progress.note("\nof each trial:")
    return dry_run.show(settings, run.bundles, run.strategy, as_json=False)


explain_sweep = explain_tune


def _title(search: Search) -> str:
    varied = ", ".join(search.space.varied) or "nothing"
    return f"{search.plan.kind} {search.name}: {progress.counted(len(search.plan.trials), 'trial')} over {varied}"


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


def _search(args: argparse.Namespace, place: session.Place, search: Search, ledger: Ledger) -> WorkloadError | None:
    """Run the trials that are left; returns why some had to be left out, if any were."""
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

        from workloads.tune.search import PROGRESS_SECONDS, Milestones, Runner, TrialQueue

        fitting = at_most or concurrency.of_cluster(search.workers, place.environment)
        limit = concurrency.choose(args.concurrency, fitting, search.workers, progress.note)
        address = ray.get_runtime_context().gcs_address

        def work(trial: Trial) -> tuple[list[str], Path]:
            what = ["train", "--run", trial.name, *search.train, *report.assignments(trial)]
            return what + _place_arguments(args, search, address), search.results / trial.name / "train.log"

        with run_lock.hold(search.folder.uri, search.name):
            trials = TrialQueue(ledger, limit, progress.note, lambda trial: check_place(search, place, trial))
            every = f"after it, a line every {PROGRESS_SECONDS:.0f} s"
            progress.wait(f"starting the first trials, which takes 5 to 20 s; {every}")
            Runner(trials, Milestones(ledger) if search.plan.kind == "tune" else None, address, work).run()
    return trials.verdict


def check_place(search: Search, place: session.Place, trial: Trial) -> None:
    """Check that what a trial needs beside capacity is there, as far as it can be seen from here.

    Raises:
        WorkloadError: its data or the search's storage is out of reach, or no results can be written here.
    """
    location.check_data(trial.changes.get("data", search.plan.base["data"]), place.embedded)
    check_writable(search.folder)
    check_results(search.results)


def _place_arguments(args: argparse.Namespace, search: Search, address: str) -> list[str]:
    words = ["--storage", search.folder.uri, "--results", str(search.results), "--address", address]
    words += ["--timeout", str(args.timeout), "--wandb", args.wandb]
    return words + (["--wandb-key-file", str(args.wandb_key_file.absolute())] if args.wandb_key_file else [])


def _conclude(search: Search, ledger: Ledger, verdict: WorkloadError | None) -> int:
    ranked = ranking(search.plan, ledger.state())
    uri = report.publish(search, ranked)
    terminal = sys.stdout.isatty() and os.environ.get(progress.FORM_VARIABLE) != "json"
    progress.note(f"\n{report.render(search, ranked, terminal)}\n")
    if (found := best(ranked)) is not None:
        value = found.last[search.plan.metric]
        progress.note(f"best trial {found.trial.name}: {search.plan.metric} {value:.4f}; repeat it with")
        progress.note(f"  {report.command(search, found.trial)}")
    place = uri if SUBMITTED_VARIABLE in os.environ else search.results
    progress.emit({"event": "note", "text": f"table, JSON lines, CSV, plots: {place}", "results_uri": uri})
    if verdict is not None:
        raise verdict
    if ledger.left:
        progress.note(f"interrupted; the same command with --run {search.name} goes on with the trials that are left")
        return EXIT_INTERRUPTED
    if found is None:
        raise _failure(ledger.state())
    return EXIT_OK


def _failure(outcomes: Sequence[Outcome]) -> WorkloadError:
    """Explanation of a search in which no trial succeeded: the common reason, where there is one."""
    codes = {outcome.exit_code for outcome in outcomes}
    alike = next((kind for kind in WorkloadError.__subclasses__() if {kind.exit_code} == codes), WorkloadFailedError)
    return alike(
        f"{'all ' if len(outcomes) > 1 else ''}{progress.counted(len(outcomes), 'trial')} failed; the first: "
        f"{outcomes[0].problem}",
        "Correct that, then run the same command with --retry-failed.",
    )
