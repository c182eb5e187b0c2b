"""`python -m workloads jobs`: lists a stack's jobs, shows their logs, stops them, attaches to them again.

A job is on the stack's own cluster, or a RayJob with a cluster of its own; its id says which, as no two are alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from ray.job_submission import JobDetails
from rich.table import Table
from rich.text import Text

from workloads import tables
from workloads.cluster import stack
from workloads.cluster.stack import DeployedStack
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, AuthError, PlaceError, UsageError
from workloads.jobs import ray_job_actions, ray_job_status, results
from workloads.jobs.dashboard import reach
from workloads.jobs.follow import Follower, Jobs, exit_code, show_log
from workloads.jobs.ray_job_status import Status


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job in a list."""

    name: str
    status: str
    began: float
    """Seconds since the epoch; 0 before it began."""
    ended: float
    """Likewise; 0 while it has not ended."""
    exit_code: int | None
    cluster: str
    """Of a job with a cluster of its own; else empty."""
    command: str


def add_jobs_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads jobs`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in {"list": "list the jobs, newest first", **{it: ACTIONS[it].help for it in ACTIONS}}.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        stack.add_stack_arguments(action)
        if name in ACTIONS:
            action.add_argument("id", help="the job's id, or `last` for the newest")
        if name == "attach":
            results.add_results_argument(action)


def run_jobs(args: argparse.Namespace) -> int:
    """Carry out one action; returns the exit code."""
    deployed = stack.find(args)
    if args.action == "list":
        return _list(deployed)
    job_id = _newest(deployed) if args.id == "last" else args.id
    if (status := _ray_job(deployed, job_id)) is not None:
        return ACTIONS[args.action].alone(deployed, status, args)
    with reach(deployed) as dashboard:
        return ACTIONS[args.action].shared(Jobs(dashboard), job_id, args)


def rows(deployed: DeployedStack, jobs: Jobs) -> list[JobRow]:
    """Every job of a stack, newest first: those on its cluster and those with their own."""
    found = [*map(_shared_row, submitted(jobs)), *map(_own_row, ray_job_status.listed(deployed))]
    return sorted(found, key=lambda row: row.began, reverse=True)


def table(found: Iterable[JobRow], now: float) -> Table:
    """Jobs as a table.

    Args:
        found: in the order in which they are shown.
        now: the time that a running job's duration is counted to, seconds since the epoch.
    """
    columns = Table(box=None, pad_edge=False)
    for name in ("JOB", "STATUS", "STARTED", "FOR", "EXIT"):
        columns.add_column(name, no_wrap=True)
    for name in ("CLUSTER", "COMMAND"):
        columns.add_column(name)  # these two give way where the terminal is narrow
    for row in found:
        columns.add_row(
            row.name,
            row.status,
            time.strftime("%m-%d %H:%M:%S", time.localtime(row.began)) if row.began else "",
            _duration((row.ended or now) - row.began) if row.began else "",
            "" if row.exit_code is None else str(row.exit_code),
            *(Text(text, no_wrap=True, overflow="ellipsis") for text in (row.cluster, row.command)),
        )
    return columns


def submitted(jobs: Jobs) -> list[JobDetails]:
    """The jobs that were submitted; drivers that connected by hand are not jobs of this kind."""
    return [job for job in jobs.ask(lambda client: client.list_jobs()) if job.submission_id]


def _list(deployed: DeployedStack) -> int:
    with reach(deployed) as dashboard:
        found = rows(deployed, Jobs(dashboard))
    if found:
        tables.show(table(found, time.time()))
    else:
        print("no jobs yet; `python -m workloads submit -- COMMAND` starts one")
    return EXIT_OK


def _logs(jobs: Jobs, submission_id: str, args: argparse.Namespace) -> int:
    show_log(jobs, submission_id)
    return EXIT_OK


def _stop(jobs: Jobs, submission_id: str, args: argparse.Namespace) -> int:
    if jobs.details(submission_id).status.is_terminal():
        print(f"{submission_id} had ended already")
        return EXIT_OK
    jobs.stop(submission_id)
    print(f"{submission_id} {jobs.until_stopped(submission_id).status.value.lower()}")
    return EXIT_OK


def _attach(jobs: Jobs, submission_id: str, args: argparse.Namespace) -> int:
    follower = Follower(jobs, submission_id)
    try:
        details = follower.run()
    except KeyboardInterrupt:
        print(f"\ndetached; job {follower.submission_id} goes on")
        return EXIT_INTERRUPTED
    results.fetch(follower.results_uri, args.results)
    return exit_code(details)


def _ray_job(deployed: DeployedStack, name: str) -> Status | None:
    try:
        return ray_job_status.find(deployed, name)
    except (AuthError, PlaceError):  # who may not see RayJobs has none
        return None


def _newest(deployed: DeployedStack) -> str:
    with reach(deployed) as dashboard:
        found = rows(deployed, Jobs(dashboard))
    if not found:
        raise UsageError("There are no jobs yet.", "`python -m workloads submit -- COMMAND` starts one.")
    return found[0].name


def _shared_row(job: JobDetails) -> JobRow:
    return JobRow(
        name=job.submission_id or "",
        status=job.status.value,
        began=(job.start_time or 0) / 1000,
        ended=(job.end_time or 0) / 1000,
        exit_code=job.driver_exit_code,
        cluster="",
        command=job.entrypoint,
    )


def _own_row(status: Status) -> JobRow:
    return JobRow(
        name=status.name,
        status=status.job if status.phase in ("Running", "Complete") and status.job else status.phase.upper(),
        began=_seconds(status.began),
        ended=_seconds(status.ended),
        exit_code=status.exit_code if status.over else None,
        cluster=status.cluster,
        command=status.command,
    )


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@dataclass(frozen=True)
class Action:
    """An action on one job."""

    help: str
    shared: Callable[[Jobs, str, argparse.Namespace], int]
    """On the stack's cluster."""
    alone: Callable[[DeployedStack, Status, argparse.Namespace], int]
    """With a cluster of its own."""


ACTIONS = {
    "logs": Action("print a job's log so far", _logs, ray_job_actions.logs),
    "stop": Action("stop a job and wait until it has ended", _stop, ray_job_actions.stop),
    "attach": Action(
        "follow a job and return its exit code; Ctrl-C leaves it running", _attach, ray_job_actions.attach
    ),
}
