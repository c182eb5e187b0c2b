"""`python -m workloads runs`: lists the runs bucket, verifies it, and repairs and cleans it up.

It changes nothing without a question, or `--yes`. It needs neither torch nor Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.filesize import decimal
from rich.table import Column

from workloads import tables
from workloads.checkpoints import manifest
from workloads.cluster import stack
from workloads.environment import ClusterEnvironment, variable
from workloads.errors import EXIT_OK, DataIntegrityError, UsageError, WorkloadError
from workloads.reporting.cost import Stay, stays, usd
from workloads.reporting.progress import counted
from workloads.runs import catalog as run_catalog
from workloads.runs.catalog import Attempt, KnownRun
from workloads.storage.folders import Folder, in_parallel, locate

KEEP = 3
"""Checkpoints that `gc` leaves of a run that does not say how many it wants."""

ORPHAN_HOURS = 1.0
"""Age from which a checkpoint without COMMIT cannot be one that is still being written."""

EPILOG = """\
where it looks:
  --storage PLACE          a folder of runs: a local path, a mount, or gs://BUCKET/PATH
  --stack, --context       the runs bucket of that stack; without any of these, of kubectl's cluster
  (in a job)               the runs bucket of the job's own stack

examples:
  python -m workloads runs list --storage .oasis/runs       what `train` left on this machine
  python -m workloads runs show my-run --stack dev          its checkpoints, journal and results
  python -m workloads runs verify --stack dev               read and hash everything; exit code 6 if anything is damaged
  python -m workloads runs repair my-run --stack dev        set damaged checkpoints aside, so that a good one leads
  python -m workloads runs gc --stack dev                   what could be removed; with --yes, remove it

A checkpoint is a folder `STEP-TIME` of shards, with MANIFEST.json (sizes, SHA-256) and COMMIT, written last. One
without COMMIT is being written or an orphan, and never loaded. A restart takes the newest that verifies, by itself.
"""


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads runs`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (_, text, names) in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if names:
            action.add_argument(
                "runs", nargs=names, metavar="RUN", help="name of a run" + (" (all)" if names == "*" else "")
            )
        action.add_argument("--storage", metavar="PLACE", help="folder of runs, instead of a stack's runs bucket")
        stack.add_stack_arguments(action)
        action.add_argument("--json", action="store_true", help="print JSON, for programs")
        if name in ("repair", "gc"):
            action.add_argument("--yes", action="store_true", help="change without asking")
        if name == "gc":
            action.add_argument(
                "--keep", type=int, metavar="N", help=f"good checkpoints to keep (the run's own, or {KEEP})"
            )
            action.add_argument(
                "--orphan-hours",
                type=float,
                default=ORPHAN_HOURS,
                metavar="H",
                help="age of an orphan (%(default)g; less only where nothing trains)",
            )


def run_runs(args: argparse.Namespace) -> int:
    """Carry out one action; returns the exit code."""
    if getattr(args, "keep", None) is not None and args.keep < 1:
        raise UsageError(f"--keep is {args.keep}; at least 1 checkpoint is kept.", "Choose 1 or more.")
    if not getattr(args, "orphan_hours", ORPHAN_HOURS) >= 0:
        raise UsageError(
            f"--orphan-hours is {args.orphan_hours:g}; it must be hours, 0 or more.", f"Try {ORPHAN_HOURS:g}."
        )
    return ACTIONS[args.action][0](_place(args), args)


def _place(args: argparse.Namespace) -> Folder:
    if args.storage:
        if args.stack or args.context or args.team:
            raise UsageError("--storage and a stack name two places.", "Give one of them.")
        place = locate(args.storage)
        if not place.exists():
            raise UsageError(
                f"there is no folder {place.uri}.",
                "Name the folder that holds the runs: what `train` was given as --storage, else .oasis/runs, "
                "which the first `train` makes.",
            )
        return place
    if variable("project") in os.environ and not (args.stack or args.context or args.team):
        return locate(ClusterEnvironment.from_env().runs_uri)
    try:
        return locate(stack.outputs(args).runs_uri)
    except WorkloadError as error:
        remedy = f"{error.remedy} For runs on this machine: --storage .oasis/runs."
        raise type(error)(error.problem, remedy) from error


def _list(place: Folder, args: argparse.Namespace) -> int:
    found = run_catalog.runs(place)
    rows = [
        {
            "run": run.name,
            "status": status,
            "step": manifest.step_of(run.committed[-1].name) if run.committed else None,
            "checkpoints": len(run.committed),
            "orphans": len(run.attempts) - len(run.committed),
            "bytes": run.size,
            "modified": run.modified,
        }
        for run, status in zip(found, in_parallel(KnownRun.status, found), strict=True)
    ]
    if rows and not args.json:
        _say(f"runs in {place.uri}")
    _print_rows(rows, place.uri, nothing="no run yet (`train` makes one)", as_json=args.json)
    return EXIT_OK


def _show(place: Folder, args: argparse.Namespace) -> int:
    run = run_catalog.find(place, args.runs[0])
    looked = [(attempt, _facts(run, attempt)) for attempt in run.attempts]
    checkpoints = [{**_row(run, attempt), **facts} for attempt, facts in looked if facts is not None]
    spent = stays(run.folder)
    hours = [{"began": stay.began, "workers": stay.workers, "nodes": stay.nodes, **_costs([stay])} for stay in spent]
    objects = [{"object": entry.path, "bytes": entry.size, "modified": entry.modified} for entry in run.others]
    if args.json:
        _print_rows([*checkpoints, *hours, *objects], run.folder.uri, as_json=True)
        return EXIT_OK
    print(f"{run.folder.uri}: {run.status()}, {decimal(run.size)}{_total(spent)}")
    for rows in filter(None, (checkpoints, hours, objects)):
        print()
        _print_rows(rows, run.folder.uri, as_json=False)
    return EXIT_OK


def _costs(spent: Sequence[Stay]) -> dict[str, float | None]:
    """Node hours, and USD where the price of all was known."""
    known = all(stay.usd is not None for stay in spent)
    return {
        "node_hours": round(sum(stay.node_hours for stay in spent), 4),
        "usd": round(usd(spent), 2) if known else None,
    }


def _total(spent: Sequence[Stay]) -> str:
    if not spent:
        return ""
    total = _costs(spent)
    price = "" if total["usd"] is None else f", {total['usd']:,.2f} USD at list price"
    return f"; {total['node_hours']:,.2f} node hours{price}"


def _verify(place: Folder, args: argparse.Namespace) -> int:
    rows = []
    for run in _chosen(place, args):
        problems = _problems(run)
        for attempt in run.committed:
            if attempt.name in problems:
                rows.append({**_row(run, attempt), "verdict": problems[attempt.name] or "good"})
    _print_rows(rows, place.uri, nothing="no checkpoint of this version", as_json=args.json)
    damaged = sum(row["verdict"] != "good" for row in rows)
    if damaged:
        raise DataIntegrityError(
            f"{damaged} of {counted(len(rows), 'checkpoint')} damaged.",
            "A restart passes them over by itself; `python -m workloads runs repair RUN` sets them aside.",
        )
    return EXIT_OK


def _problems(run: KnownRun) -> dict[str, str]:
    _say_reading(run, run.committed)
    return run.problems()


def _say_reading(run: KnownRun, attempts: Sequence[Attempt]) -> None:
    """Say what is about to be read in full: gigabytes from a bucket take minutes."""
    if attempts:
        size = decimal(sum(attempt.size for attempt in attempts))
        _say(f"reading {counted(len(attempts), 'checkpoint')} of {run.name}, {size}")


def _repair(place: Folder, args: argparse.Namespace) -> int:
    run = run_catalog.find(place, args.runs[0])
    problems = _problems(run)
    damaged = [attempt for attempt in run.committed if problems.get(attempt.name)]
    if damaged and len(damaged) == len(problems):
        raise DataIntegrityError(
            f"{run.name} has {counted(len(damaged), 'checkpoint')}, and none verifies, so there is none to go back to.",
            "Nothing was changed. Train under another --run name, or delete that folder to start it again.",
        )
    rows = [{**_row(run, attempt), "verdict": problems[attempt.name]} for attempt in damaged]
    _print_rows(rows, run.folder.uri, nothing="no damaged checkpoint", as_json=args.json)
    if damaged and _agreed(args, f"set {counted(len(damaged), 'damaged checkpoint')} of {run.name} aside?"):
        for attempt in damaged:
            manifest.withdraw(run.attempt(attempt.name))
        leader = [name for name, problem in problems.items() if not problem][-1]
        _say(
            f"{len(damaged)} set aside: their COMMIT is removed, their other files stay until `runs gc` or the next "
            f"start of the run; {leader} leads"
        )
    return EXIT_OK


def _gc(place: Folder, args: argparse.Namespace) -> int:
    found = _chosen(place, args)
    waste = [(run, attempt, why) for run in found for attempt, why in _superfluous(run, args)]
    rows = [{**_row(run, attempt), "verdict": why} for run, attempt, why in waste]
    _print_rows(rows, place.uri, nothing="nothing to remove", as_json=args.json)
    size = sum(attempt.size for _, attempt, _ in waste)
    if waste and not args.yes:
        _say(f"{len(waste)} could be removed, {decimal(size)}; without --yes nothing was")
    elif waste:
        for run, attempt, _ in waste:
            manifest.discard(run.attempt(attempt.name))
        _say(f"{len(waste)} removed, {decimal(size)}")
    return EXIT_OK


def _superfluous(run: KnownRun, args: argparse.Namespace) -> list[tuple[Attempt, str]]:
    """Files that a run would not miss, and why; of checkpoints only those with enough newer ones that verify."""
    before = time.time() - args.orphan_hours * 3600
    found = [
        (attempt, "orphan: it has no COMMIT")
        for attempt in run.attempts
        if not attempt.committed and attempt.modified < before
    ]
    keep = args.keep or _wanted(run)
    good = 0
    if len(run.committed) > keep:
        _say_reading(run, run.committed[-keep:])  # older ones are read only in the place of damaged ones
    for attempt in reversed(run.committed):
        if good >= keep:
            found.append((attempt, f"superfluous: {keep} newer ones are good"))
        elif len(run.committed) > keep and _is_good(run, attempt):
            good += 1
    return found


def _wanted(run: KnownRun) -> int:
    try:
        found = run.newest_manifest()
    except DataIntegrityError:
        found = None
    return found["facts"].get("config", {}).get("keep_checkpoints", KEEP) if found else KEEP


def _is_good(run: KnownRun, attempt: Attempt) -> bool:
    try:
        manifest.verify(run.attempt(attempt.name))
    except DataIntegrityError:
        return False
    return True


def _chosen(place: Folder, args: argparse.Namespace) -> list[KnownRun]:
    return [run_catalog.find(place, name) for name in args.runs] if args.runs else run_catalog.runs(place)


def _row(run: KnownRun, attempt: Attempt) -> dict[str, Any]:
    return {
        "run": run.name,
        "checkpoint": attempt.name,
        "step": manifest.step_of(attempt.name),
        "committed": attempt.committed,
        "bytes": attempt.size,
        "modified": attempt.modified,
    }


def _facts(run: KnownRun, attempt: Attempt) -> dict[str, Any] | None:
    """The manifest's content; None where it was removed since it was listed."""
    if not attempt.committed:
        return {"verdict": "no COMMIT"}
    try:
        found = manifest.read(run.attempt(attempt.name))
    except DataIntegrityError as error:
        return {"verdict": error.problem} if manifest.stands(run.attempt(attempt.name)) else None
    return {"epoch": found["facts"].get("epoch"), "workers": found["facts"].get("world_size")}


def _agreed(args: argparse.Namespace, question: str) -> bool:
    if args.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on; nothing was changed.", "Add --yes to change it.")
    print(f"{question} [y/N] ", end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _print_rows(rows: Sequence[dict[str, Any]], uri: str, *, nothing: str = "no run", as_json: bool) -> None:
    """Print rows, each with a value per column it has.

    Args:
        rows: `bytes` is a size and `modified` a unix time, which are shown as people read them.
        uri: where they come from, to say so when there are none.
        nothing: what there is then.
        as_json: print them as one JSON list and nothing else.
    """
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print(f"there is {nothing} in {uri}", file=sys.stderr)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    headings = (
        {"bytes": "SIZE", "modified": "AGE", "node_hours": "NODE HOURS"}.get(name, name.upper()) for name in columns
    )
    table = tables.plain(*(Column(heading, overflow="fold") for heading in headings))
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in columns))
    tables.show(table)


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "bytes" and isinstance(value, int):
        return decimal(value)
    if name == "modified" and isinstance(value, float):
        return _age(time.time() - value)
    if name == "began" and isinstance(value, float):
        return time.strftime("%m-%d %H:%M:%S", time.localtime(value))
    return str(value)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


ACTIONS: dict[str, tuple[Callable[[Folder, argparse.Namespace], int], str, str | int]] = {
    "list": (_list, "list the runs: newest step, size, age, complete or not", ""),
    "show": (_show, "show one run's checkpoints, journal and results", 1),
    "verify": (_verify, "read and hash every checkpoint; exit code 6 if one is damaged", "*"),
    "repair": (_repair, "set one run's damaged checkpoints aside, so that the newest good one leads", 1),
    "gc": (_gc, "list what no run needs, orphans and superfluous checkpoints; with --yes, remove it", "*"),
}
