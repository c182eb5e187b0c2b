"""`python -m workloads jobs`: lists a stack's jobs, shows their logs, stops them, attaches to them again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from ray.job_submission import JobDetails
from rich.console import Console
from rich.table import Table

from workloads import results, stack
from workloads.dashboard import reach
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError, WorkloadFailedError
from workloads.follow import STOP_SECONDS, Follower, Jobs, exit_code

_UNLIMITED = 1000


def add_jobs_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads jobs`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (_, text, takes_id) in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        stack.add_stack_arguments(action)
        if takes_id:
            action.add_argument("id", help="the job's id, or `last` for the newest")
        if name == "attach":
            results.add_results_argument(action)


def run_jobs(args: argparse.Namespace) -> int:
    """Carry out one action; returns the exit code."""
    with reach(stack.find(args)) as dashboard:
        return ACTIONS[args.action][0](Jobs(dashboard), args)


def table(jobs: list[JobDetails], now: float) -> Table:
    """Jobs, newest first.

    Args:
        jobs: as Ray lists them.
        now: the time that a running job's duration is counted to, seconds since the epoch.
    """
    columns = Table(box=None, pad_edge=False)
    for name in ("JOB", "STATUS", "STARTED", "FOR", "EXIT", "COMMAND"):
        columns.add_column(name, no_wrap=True, overflow="ellipsis" if name == "COMMAND" else "ignore")
    for job in sorted(jobs, key=lambda job: job.start_time or 0, reverse=True):
        began = (job.start_time or 0) / 1000
        ended = job.end_time / 1000 if job.end_time else now
        columns.add_row(
            job.submission_id or job.job_id or "",
            job.status.value,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began)) if began else "",
            _duration(ended - began) if began else "",
            "" if job.driver_exit_code is None else str(job.driver_exit_code),
            job.entrypoint,
        )
    return columns


def print_table(columns: Table) -> None:
    """Print a table as wide as the terminal; whole where the output is no terminal."""
    Console(width=None if sys.stdout.isatty() else _UNLIMITED).print(columns)


def submitted(jobs: Jobs) -> list[JobDetails]:
    """The jobs that were submitted; drivers that connected by hand are not jobs of this kind."""
    return [job for job in jobs.ask(lambda client: client.list_jobs()) if job.submission_id]


def _list(jobs: Jobs, args: argparse.Namespace) -> int:
    found = submitted(jobs)
    if found:
        print_table(table(found, time.time()))
    else:
        print("no jobs yet; `python -m workloads submit -- COMMAND` starts one")
    return EXIT_OK


def _logs(jobs: Jobs, args: argparse.Namespace) -> int:
    submission_id = _id(jobs, args)
    jobs.details(submission_id)
    print(jobs.log(submission_id), end="")
    return EXIT_OK


def _stop(jobs: Jobs, args: argparse.Namespace) -> int:
    submission_id = _id(jobs, args)
    if jobs.details(submission_id).status.is_terminal():
        print(f"{submission_id} had ended already")
        return EXIT_OK
    jobs.stop(submission_id)
    while not (details := jobs.details(submission_id)).status.is_terminal():
        if jobs.given_up:
            raise WorkloadFailedError(
                f"job {submission_id} has not stopped within {STOP_SECONDS:.0f} s.",
                f"`python -m workloads jobs logs {submission_id}` shows what it does; stop it again.",
            )
        time.sleep(0.5)
    print(f"{submission_id} {details.status.value.lower()}")
    return EXIT_OK


def _attach(jobs: Jobs, args: argparse.Namespace) -> int:
    follower = Follower(jobs, _id(jobs, args))
    try:
        details = follower.run()
    except KeyboardInterrupt:
        print(f"\ndetached; job {follower.submission_id} goes on")
        return EXIT_INTERRUPTED
    results.fetch(follower.results_uri, args.results)
    return exit_code(details)


def _id(jobs: Jobs, args: argparse.Namespace) -> str:
    if args.id != "last":
        return args.id
    newest = max(submitted(jobs), key=lambda job: job.start_time or 0, default=None)
    if newest is None or not newest.submission_id:
        raise UsageError("There are no jobs yet.", "`python -m workloads submit -- COMMAND` starts one.")
    return newest.submission_id


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


ACTIONS: dict[str, tuple[Callable[[Jobs, argparse.Namespace], int], str, bool]] = {
    "list": (_list, "list the jobs, newest first", False),
    "logs": (_logs, "print a job's log so far", True),
    "stop": (_stop, "stop a job and wait until it has ended", True),
    "attach": (_attach, "follow a job and return its exit code; Ctrl-C leaves it running", True),
}
"""What is done, what it is, and whether it takes a job's id."""
