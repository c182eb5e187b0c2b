"""`python -m workloads jobs`, which lists, stops and reattaches to a stack's jobs and shows their logs; and
`python -m workloads status`, one screen with the nodes of a stack's Ray and the jobs on it.

A job is on the stack's own cluster, or a RayJob with a cluster of its own; its id tells which, because ids are unique.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ray.job_submission import JobDetails
from rich.table import Column
from rich.text import Text

from workloads import tables
from workloads.cluster import stack
from workloads.cluster.stack import DeployedStack
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, AuthError, PlaceError, UsageError, WorkloadError
from workloads.jobs import paid_nodes, pending, queue, ray_job
from workloads.jobs.dashboard import reach
from workloads.jobs.entry_point import DRIVER_RESOURCES
from workloads.jobs.follow import Follower, Jobs, add_results_argument, again, exit_code, fetch_results, show_log
from workloads.jobs.ray_job import OwnCluster, Status
from workloads.reporting.progress import counted

_RECENT = 10
"""Jobs on the screen of `status`."""


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
    """Cluster of a job that has its own; otherwise empty."""
    command: str


def add_jobs_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads jobs`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in {"list": "list the jobs, newest first", **{it: ACTIONS[it][0] for it in ACTIONS}}.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        stack.add_stack_arguments(action)
        if name in ACTIONS:
            action.add_argument("id", help="the job's id" + ("" if name == "stop" else ", or `last` for the newest"))
        if name == "attach":
            add_results_argument(action)


def run_jobs(args: argparse.Namespace) -> int:
    """Carry out one action; returns the exit code."""
    deployed = stack.find(args)
    if args.action == "list":
        show(_all(deployed))
        return EXIT_OK
    name = _newest(deployed) if args.id == "last" else args.id
    if (args.action, args.id) == ("stop", "last"):
        raise UsageError(
            f"`last` is the newest job of everybody who uses this stack, now {name}, and only a job's id stops it.",
            f"If it is yours, or its owner agrees: `python -m workloads jobs stop {name}{stack.flags(args)}`.",
        )
    alone = _ray_job(deployed, name)
    if deployed.environment.team and alone is None:
        raise UsageError(
            f"Team {deployed.environment.team} has no job {name}.",
            f"`python -m workloads jobs list{stack.flags(args)}` lists those that it has.",
        )
    return ACTIONS[args.action][1](deployed, name, alone, args)


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads status`."""
    stack.add_stack_arguments(parser)


def run_status(args: argparse.Namespace) -> int:
    """Print the screen; returns the exit code."""
    deployed = stack.find(args)
    if team := deployed.environment.team:
        print(f"team {team}: up to {counted(deployed.environment.gpu_queue_nodes, 'GPU node')} by its queue")
        print()
        show(rows(deployed, None)[:_RECENT])
        return EXIT_OK
    _show_paid(deployed)  # first: they are billed whether or not Ray answers
    with reach(deployed) as dashboard:
        print(head_line(deployed, dashboard.address()))
        print()
        table = tables.plain(*(Column(name, no_wrap=True) for name in ("NODE", "ADDRESS", "STATE")), "IN USE")
        for row in node_rows(dashboard.get("/nodes?view=summary")["data"]):
            table.add_row(*row)
        tables.show(table)
        for line in pending.lines(pending.look(deployed)):
            print(line)
        if ended := pending.ended_autoscalers(deployed):
            print(f"{ended}. {pending.NEW_HEAD}")
        print()
        show(rows(deployed, Jobs(dashboard))[:_RECENT])
    return EXIT_OK


def _show_paid(deployed: DeployedStack) -> None:
    try:
        nodes = paid_nodes.look(deployed)
    except WorkloadError as error:
        print(f"which GPU nodes are on cannot be seen: {error.problem}\n")
        return
    if not nodes:
        print("no GPU node is on\n")
        return
    print(paid_nodes.head_line(nodes))
    table = tables.plain(*(Column(name, no_wrap=True) for name in ("GPU NODE", "FOR", "USD SO FAR")), "WHOSE")
    now = time.time()
    for node in nodes:
        usd = node.usd(now)
        cost = "" if usd is None else f"{usd:,.2f}"
        table.add_row(node.name, duration(now - node.since), cost, ", ".join(node.holders) or "nobody")
    tables.show(table)
    print()


def rows(deployed: DeployedStack, jobs: Jobs | None) -> list[JobRow]:
    """Every job of a stack, newest first: those on its cluster, if it has one, and those with their own."""
    # Drivers that connected by hand are not jobs of this kind.
    known = jobs.listed() if jobs else []
    submitted = [job for job in known if job.submission_id]
    found = [*map(_shared_row, submitted), *map(_own_row, ray_job.listed(deployed))]
    return sorted(found, key=lambda row: row.began, reverse=True)


def show(found: Sequence[JobRow]) -> None:
    """Print jobs as a table."""
    if not found:
        print("no jobs yet; `python -m workloads submit -- COMMAND` starts one")
        return
    whole = [Column(name, no_wrap=True) for name in ("JOB", "STATUS", "STARTED", "FOR", "EXIT")]
    table = tables.plain(*whole, "CLUSTER", "COMMAND")  # these two are shortened if the terminal is narrow
    for row in found:
        table.add_row(
            row.name,
            row.status,
            time.strftime("%m-%d %H:%M:%S", time.localtime(row.began)) if row.began else "",
            duration((row.ended or time.time()) - row.began) if row.began else "",
            "" if row.exit_code is None else str(row.exit_code),
            *(Text(" ".join(it.split()), no_wrap=True, overflow="ellipsis") for it in (row.cluster, row.command)),
        )
    tables.show(table)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: `1:05:00`."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _logs(deployed: DeployedStack, name: str, alone: Status | None, args: argparse.Namespace) -> int:
    """Print the log so far; for an ended job whose cluster is gone, what KubeRay kept of it."""
    if alone and not alone.job and not alone.over:
        why = queue.look(deployed, alone).text if alone.queue else pending.describe(deployed, alone.cluster)
        print(f"{name} has not begun: {why}", file=sys.stderr)
        return EXIT_OK
    try:
        with reach(deployed.of_cluster(alone.cluster) if alone else deployed) as dashboard:
            show_log(Jobs(dashboard), name)
    except (AuthError, PlaceError):
        if alone is None or not alone.over:
            raise
        print(f"the cluster of {name} is gone, and its log with it; KubeRay kept:", file=sys.stderr)
        print(alone.message)
    return EXIT_OK


def stop(deployed: DeployedStack, name: str, alone: Status | None) -> None:
    """Stop a job if it runs, and have its own cluster removed, even if its Ray no longer knows the job.

    Args:
        deployed: the stack.
        name: name of the job.
        alone: KubeRay's report on its RayJob; None for a job on the stack's own cluster.

    Raises:
        PlaceError: Ray is out of reach, and the job continues; or its own cluster could not be removed.
        WorkloadError: it has not stopped.
    """
    if alone is None:
        _stop_in_ray(deployed, name)
        return
    # KubeRay reports a queued job as running before it has submitted it.
    if alone.held or (alone.queue and not alone.job) or alone.phase != "Running":
        if alone.over:
            print(f"{name} had ended already")
        else:
            ray_job.delete(deployed, name)
            queue.tidy(deployed, alone)
        return
    try:
        own = OwnCluster(deployed.of_cluster(alone.cluster), deployed, name)
        _stop_in_ray(own.stack, name, young=True)
    except UsageError as error:  # its head was lost and restarted
        print(error.problem, file=sys.stderr)
        ray_job.delete(deployed, name)
    except PlaceError as error:  # perhaps only our connection is at fault: nothing is ended without a checkpoint
        removal = f"To end it without a last checkpoint: `{ray_job.deletion(deployed, name)}`."
        raise PlaceError(error.problem, f"{error.remedy} {removal}".lstrip()) from error
    else:
        own.release(interrupted=True)
    queue.tidy(deployed, alone)


def _stop_in_ray(of: DeployedStack, name: str, *, young: bool = False) -> None:
    with reach(of, young=young) as dashboard:
        jobs = Jobs(dashboard)
        if jobs.details(name).status.is_terminal():
            print(f"{name} had ended already")
        else:
            jobs.stop(name)
            print(f"{name} {jobs.until_stopped(name).status.value.lower()}")


def _stop(deployed: DeployedStack, name: str, alone: Status | None, args: argparse.Namespace) -> int:
    stop(deployed, name, alone)
    return EXIT_OK


def _attach(deployed: DeployedStack, name: str, alone: Status | None, args: argparse.Namespace) -> int:
    """Follow the job and return its exit code; Ctrl-C leaves it running."""
    if alone and alone.over:
        _logs(deployed, name, alone, args)
        queue.tidy(deployed, alone)
        return ray_job.conclude(alone)
    if alone and alone.queue:
        return _attach_in_queue(deployed, name, args)
    try:
        own = ray_job.await_cluster(deployed, name, ray_job.ATTACH_SECONDS, ("Running",)) if alone else None
        with reach(own.stack if own else deployed, young=own is not None) as dashboard:
            follower = Follower(Jobs(dashboard), name)
            details = follower.run()
    except KeyboardInterrupt:
        print(f"\ndetached; job {name} goes on")
        return EXIT_INTERRUPTED
    except (AuthError, PlaceError):
        code = ray_job.ended_unseen(deployed, name) if alone else None
        if code is None:
            raise
        return code
    fetch_results(follower, args.results)
    if own:
        own.release(interrupted=False)
    return exit_code(details)


def _attach_in_queue(deployed: DeployedStack, name: str, args: argparse.Namespace) -> int:
    try:
        return queue.through(deployed, name, args.results, again(args, name))
    except KeyboardInterrupt:
        print(f"\ndetached; job {name} stays where it is, in the queue or on its nodes")
        return EXIT_INTERRUPTED


def _ray_job(deployed: DeployedStack, name: str) -> Status | None:
    try:
        return ray_job.find(deployed, name)
    except (AuthError, PlaceError):  # a user who may not see RayJobs has none
        return None


def head_line(deployed: DeployedStack, address: str) -> str:
    """Name of this cluster, its maximum size, and the current address of its dashboard."""
    environment = deployed.environment
    grows = f"up to {environment.cpu_workers_max} CPU workers"
    if environment.gpu_max_nodes:
        grows += f" and {environment.gpu_max_nodes} x {environment.machine_type}"
    return f"Ray cluster {environment.ray_cluster_name} in {environment.zone}, {grows}; dashboard {address}"


def node_rows(data: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Role, address, state and use of each node, the head first.

    Args:
        data: the dashboard's answer at `/nodes?view=summary`.
    """
    rows = []
    for node in data["summary"]:
        raylet = node.get("raylet", {})
        node_id = str(raylet.get("nodeId", ""))
        used = data.get("nodeLogicalResources", {}).get(node_id) or ""
        role = "head" if raylet.get("isHeadNode") else "worker"
        rows.append((role, str(node.get("ip", "")), str(raylet.get("state", "?")).lower(), _use(used)))
    return sorted(rows, key=lambda row: (row[0] != "head", row[1]))


def _all(deployed: DeployedStack) -> list[JobRow]:
    if deployed.environment.team:
        return rows(deployed, None)
    with reach(deployed) as dashboard:
        return rows(deployed, Jobs(dashboard))


def _newest(deployed: DeployedStack) -> str:
    if not (found := _all(deployed)):
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
        status=_state(status),
        began=_seconds(status.began),
        ended=_seconds(status.ended),
        exit_code=status.exit_code if status.over else None,
        cluster=status.cluster,
        command=status.command,
    )


def _state(status: Status) -> str:
    if status.held:
        return "QUEUED"
    return status.job if status.phase in ("Running", "Complete") and status.job else status.phase.upper()


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _use(lines: str) -> str:
    """Ray's lines of `used/total RESOURCE` in one line, without the object store, which is part of the memory.

    The head's resource for drivers is shown as the number of jobs that hold some: its total is an invented number, not
    a limit that is ever reached.
    """
    told = []
    for line in lines.splitlines():
        amount, _, name = line.partition(" ")
        used, total = (number.removesuffix(".0") for number in amount.split("/"))
        if name in DRIVER_RESOURCES:
            told.append(f"drivers of {counted(round(float(used) / DRIVER_RESOURCES[name]), 'job')}")
        elif name != "object_store_memory":
            told.append(f"{used} of {total} {name}")
    return ", ".join(told)


ACTIONS: dict[str, tuple[str, Callable[[DeployedStack, str, Status | None, argparse.Namespace], int]]] = {
    "logs": ("print a job's log so far", _logs),
    "stop": ("stop a job and wait until it has ended", _stop),
    "attach": ("follow a job and return its exit code; Ctrl-C leaves it running", _attach),
}
"""The help of each action, and its function, which takes the job's name and KubeRay's report on its RayJob, if any."""
