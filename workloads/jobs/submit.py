"""`python -m workloads submit`: runs any command as a job on a stack's Ray, shows it, and returns its exit code.

A command of this package takes the package along, so that the local code is what runs. With `--ray-job` the job has a
cluster of its own, modelled on the stack's and removed with the job; with `--queue`, one that starts when all its nodes
are there together. The rest is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from workloads import __main__ as command_line
from workloads import dry_run, emulated
from workloads.cluster import stack
from workloads.cluster.session import Place
from workloads.cluster.stack import DeployedStack
from workloads.environment import SUBMITTED_VARIABLE
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, PlaceError, UsageError, WorkloadError, did_you_mean
from workloads.jobs import enqueue, entry_point, forecast, price, ray_job, working_dir
from workloads.jobs.dashboard import reach
from workloads.jobs.entry_point import Demand, Supply
from workloads.jobs.follow import (
    OURS,
    STOP_SECONDS,
    Follower,
    Jobs,
    add_results_argument,
    again,
    detached,
    exit_code,
    fetch_results,
    refused,
    tell,
)
from workloads.jobs.job import Job
from workloads.reporting import progress
from workloads.reporting.progress import counted
from workloads.storage.results import check_results

OWN_COMMANDS = ("train", "tune", "sweep", "bench", "digits", "shards", "doctor", "runs")
"""Commands of this package that run in a job in the same way as here."""

START_SECONDS = 1800
"""How long the cluster of a stand-alone job may take: a new node, and the image on it."""

_JOB_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "RAY_JOB_STOP_SIGNAL": "SIGINT",  # Ray's default is SIGTERM, and SIGKILL 3 s later: no time to clean up
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
}

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)$", re.IGNORECASE)


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads submit`."""
    parser.usage = "python -m workloads submit [options] -- COMMAND ..."
    stack.add_stack_arguments(parser)
    job = parser.add_argument_group("job")
    job.add_argument(
        "--working-dir", type=Path, metavar="DIR", help="folder that is uploaded, and where the command starts"
    )
    job.add_argument(
        "--runtime-env",
        type=Path,
        metavar="FILE",
        help="Ray runtime environment, YAML; paths are relative to its folder, else to this one",
    )
    job.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable of the job, by default with its value here; repeatable; not for secrets: Ray shows it",
    )
    job.add_argument("--detach", action="store_true", help="return as soon as the job is submitted")
    add_results_argument(job)
    entry_point.add_entry_point_arguments(parser.add_argument_group("resources of the command itself"))
    alone = parser.add_argument_group("a cluster of its own")
    alone.add_argument("--ray-job", action="store_true", help="make a cluster like the stack's for this job alone")
    alone.add_argument(
        "--start-timeout",
        type=int,
        default=START_SECONDS,
        metavar="SECONDS",
        help="longest wait for that cluster (%(default)s)",
    )
    enqueue.add_queue_arguments(parser)
    dry_run.add_dry_run_arguments(parser, "what the command would use as a job, and where each value came from")
    parser.add_argument(
        "--when",
        action="store_true",
        help="only say whether the nodes that the job would ask for are likely to come",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help=f"what to run: any program, or {', '.join(OWN_COMMANDS)} of this package",
    )


def run_submit(args: argparse.Namespace) -> int:
    """Submit, follow, and return the driver's exit code."""
    command = _without_our_module(args.command[1:] if args.command[:1] == ["--"] else args.command)
    if not command:
        raise UsageError(
            "There is no command to submit.", "Write it after `--`: submit --working-dir . -- python3 hello_world.py"
        )
    if args.start_timeout < 1:
        raise UsageError(f"--start-timeout is {args.start_timeout}; it must be at least 1.", "Give it in seconds.")
    enqueue.refuse_arguments(args)
    demand = entry_point.read(args)
    command = enqueue.named(command) if args.queue else command
    if args.when:
        return _forecast(args, command, demand)
    with _packed(args, command, demand) as job:
        if args.dry_run:
            return _show(args, command, job)
        deployed = stack.find(args)
        tell(f"the job goes to {deployed.environment.cluster}")
        if job.entrypoint.startswith(f"{OURS} ") and not args.detach:
            check_results(args.results)
        if args.queue:
            return _run_queued(args, command, deployed, job)
        if costs := price.of_ladder(deployed.environment, command, job.demand):
            tell(costs)
        if args.ray_job:
            return _run_alone(args, deployed, job)
        with reach(deployed) as dashboard:
            jobs = Jobs(dashboard)
            _refuse_impossible(job.demand, deployed, jobs.ask(lambda _: dashboard.nodes()))
            return _run(args, jobs, job)


def _without_our_module(command: list[str]) -> list[str]:
    """The command, without the `python -m workloads` that may precede one of this package's own."""
    module = re.fullmatch("python3? -m workloads", " ".join(command[:3]))
    return command[3:] if module and {*command[3:4]} & {*OWN_COMMANDS} else command


def hand_in(jobs: Jobs, job: Job) -> None:
    """Submit a job; if the connection breaks, repeat until it is known to be submitted.

    Raises:
        UsageError: Ray does not accept the runtime environment.
        AuthError, WorkloadFailedError: Ray refuses the job.
        PlaceError: the dashboard stayed out of reach.
    """
    try:
        jobs.ask(
            lambda client: client.submit_job(
                entrypoint=job.entrypoint,
                submission_id=job.name,
                runtime_env=dict(job.runtime_env),  # Ray's client writes the address of what it uploaded into it
                metadata=job.metadata,
                **job.demand.parameters(),
            )
        )
    except RuntimeError as error:
        # The name is unique to this job: it was submitted, and the answer was lost.
        if f"{job.name} already exists" not in str(error):
            raise refused(error) from error
    except (TypeError, ValueError) as error:  # the runtime environment does not fit Ray's schema
        raise UsageError(f"Ray does not accept the runtime environment: {error}", "Correct --runtime-env.") from error


def _forecast(args: argparse.Namespace, command: list[str], demand: Demand) -> int:
    """Print the forecast for the rungs whose nodes the job may get."""
    if not args.stack:
        raise UsageError("--when is without --stack: the ladder is in a stack's file.", "Name the stack: --stack dev.")
    if not args.queue and not price.takes_gpus(command, demand):
        print(f"{command[0]} asks for no GPU node, so it waits for none")
        return EXIT_OK
    tell("nothing is submitted")
    job = ("--job", "queue", "--nodes", str(args.nodes or 1)) if args.queue else ("--job", "ladder")
    print("\n".join(forecast.lines(args.stack, *job)))
    return EXIT_OK


def _show(args: argparse.Namespace, command: list[str], job: Job) -> int:
    """Print the values of a command that explains itself; for any other, the entry point and the stack's values.

    This reads only the stack's outputs: it asks neither for its Ray nor for its token.
    """
    cluster = stack.outputs(args)
    ray = "a cluster of its own" if args.ray_job else f"RayCluster {cluster.ray_cluster_name}"
    if args.queue:
        nodes = args.nodes or 1
        enqueue.refuse_impossible(command, nodes, command[0] in OWN_COMMANDS, cluster)
        ray = f"a cluster of its own, with {counted(nodes, 'GPU node')} from the queue {cluster.gpu_queue}"
        cluster = replace(cluster, gpu_node_hour_usd=cluster.gpu_queue_node_hour_usd)
    place = Place(address=ray, environment=cluster, told_by=stack.origin(args))
    known = command_line.COMMANDS.get(command[0])
    if known is None or not known.explains:
        settings = {"entrypoint": (job.entrypoint, "the command"), **dry_run.of_stack(place)}
        settings |= {"cluster": (ray, "flag --queue")} if args.queue else {}
        return dry_run.show(settings, [job.demand.amounts], "STRICT_PACK", args.json)
    tell(f"not submitted: `{job.entrypoint}`, which takes {job.demand} for itself")
    if emulated.is_here():
        tell("the values are those of the stack on Google Cloud; its emulated nodes have no GPU: CPU workers run there")
    return command_line.explain(command, place, args.json)


def _run(args: argparse.Namespace, jobs: Jobs, job: Job) -> int:
    try:
        hand_in(jobs, job)
        if args.detach:
            return detached(args, job.name)
        tell(f"job {job.name} submitted; Ctrl-C stops it")
    except KeyboardInterrupt:  # Ray may have the job, although its answer has not arrived
        with _told_if_left(args, job.name):
            return _stop(args, Follower(jobs, job.name))
    return _watch(args, Follower(jobs, job.name))


def _run_alone(args: argparse.Namespace, deployed: DeployedStack, job: Job) -> int:
    entry_point.refuse_impossible(job.demand, entry_point.groups(ray_job.spec_of_cluster(deployed)))
    with ray_job.own_cluster(deployed, job.name, job.entrypoint, args.start_timeout) as own:
        try:
            with reach(own.stack, young=True) as dashboard:
                jobs = Jobs(dashboard)
                hand_in(jobs, job)
                try:
                    own.begin()
                    if args.detach:
                        return detached(args, job.name)
                    tell(f"job {job.name} submitted to its own cluster; Ctrl-C stops it and removes the cluster")
                except KeyboardInterrupt:
                    if not own.may_have_begun():  # then the RayJob is deleted, with its cluster and job
                        raise
                    with _told_if_left(args, job.name):
                        code = _stop(args, Follower(jobs, job.name))
                else:
                    code = _watch(args, Follower(jobs, job.name))
        except PlaceError:
            code = ray_job.ended_unseen(deployed, job.name)
            if code is None:
                raise
        own.release(interrupted=code == EXIT_INTERRUPTED)
        return code


def _run_queued(args: argparse.Namespace, command: list[str], deployed: DeployedStack, job: Job) -> int:
    nodes = args.nodes or 1
    enqueue.refuse_impossible(command, nodes, command[0] in OWN_COMMANDS, deployed.environment)
    tell(price.of_queue(deployed.environment, nodes))
    return enqueue.run(args, job, nodes, deployed, lambda follower: _stop(args, follower))


def _watch(args: argparse.Namespace, follower: Follower) -> int:
    with _told_if_left(args, follower.submission_id):
        try:
            details = follower.run()
        except KeyboardInterrupt:
            return _stop(args, follower)
    fetch_results(follower, args.results)
    return exit_code(details)


@contextlib.contextmanager
def _told_if_left(args: argparse.Namespace, name: str) -> Iterator[None]:
    """Say how to return to a job that can no longer be followed or stopped."""
    try:
        yield
    except (WorkloadError, OSError):  # the latter from our own output
        print(f"job {name} was left running; follow it with `{again(args, name)}`", file=sys.stderr)
        raise


def _stop(args: argparse.Namespace, follower: Follower) -> int:
    name, attach, most = follower.submission_id, again(args, follower.submission_id), f"{STOP_SECONDS:.0f} s"
    print(f"stopping job {name}, which may take {most}; Ctrl-C again leaves it to end by itself", file=sys.stderr)
    try:
        if not follower.jobs.stop(name):
            print("Ray had not taken it yet", file=sys.stderr)
            return EXIT_INTERRUPTED
        stopped = follower.run().status.is_terminal()
        word = "it has stopped" if stopped else f"it has not stopped within {most}; look at it with `{attach}`"
        print(word, file=sys.stderr)
    except KeyboardInterrupt:
        print(f"left while it was stopping; follow it with `{attach}`", file=sys.stderr)
    return EXIT_INTERRUPTED


def _refuse_impossible(demand: Demand, deployed: DeployedStack, there: Sequence[Supply]) -> None:
    if any(demand.fits(node.resources) for node in there):
        return
    try:
        spec = ray_job.spec_of_cluster(deployed)
    except WorkloadError as error:
        tell(f"what the cluster can grow to is not known, so the job may wait in vain: {error.problem}")
        return
    entry_point.refuse_impossible(demand, [*there, *entry_point.groups(spec)])


@contextlib.contextmanager
def _packed(args: argparse.Namespace, command: list[str], demand: Demand) -> Iterator[Job]:
    """The job; its staged files exist for the duration of the block."""
    given = _read_runtime_env(args.runtime_env)
    own = command[0] in OWN_COMMANDS
    if not own and (near := did_you_mean(command[0], OWN_COMMANDS)):
        tell(f"{command[0]} is not a command of this package, so the job runs a program of that name{near}")
    if not own and args.working_dir is None and "working_dir" not in given:
        paths = [word for word in command if os.access(word, os.F_OK)]  # no error if a word is too long for a path
        for word in (word for word in paths if Path(word).is_file() and not Path(word).is_absolute()):
            tell(f"{word} is not uploaded; `--working-dir .` would take the files of this folder along")
    own_cluster = " --ray-job" if args.ray_job else f" --queue --nodes {args.nodes or 1}" if args.queue else ""
    flags = f"{stack.flags(args)}{own_cluster}".strip()
    ours = {progress.FORM_VARIABLE: "json", SUBMITTED_VARIABLE: flags} if own else {}
    variables = {**_JOB_ENVIRONMENT, **ours}
    named = {**(given.get("env_vars") or {}), **_variables(args.env)}
    for name in filter(_SECRET.search, map(str, named)):
        raise UsageError(
            f"The job's variable {name} looks like a secret, and Ray shows variables to whoever may list jobs.",
            "Keep it in Secret Manager, where the job can read it: docs/training.md, Your own program.",
        )
    environment = {**given, "env_vars": {**variables, **named}}
    folder = args.working_dir or _local(given.get("working_dir"))
    with tempfile.TemporaryDirectory(prefix="oasis-submit-") as staging:
        if folder is not None:
            if not folder.is_dir():
                raise UsageError(f"The working directory {folder} is not a folder.", "Name the folder to upload.")
            folder = folder.resolve()
            environment["excludes"] = working_dir.excludes(folder, given.get("excludes") or ())
            tell(f"working directory {folder}: {working_dir.check(folder, environment['excludes'])}")
            environment["working_dir"] = str(folder)
        elif own and "working_dir" not in environment:
            command_line.check(command)
            environment["working_dir"] = staging
            command = working_dir.stage(command, Path(staging))
        words = [*OURS.split(), *command] if own else command
        yield Job(name=_name(command[0]), entrypoint=shlex.join(words), runtime_env=environment, demand=demand)


def _variables(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env is {word!r}.", "Write NAME=VALUE, or NAME for the value here.")
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name} has no value, and {name} is not set here.", f"Write --env {name}=VALUE.")
        found[name] = value if equals else os.environ[name]
    return found


def _local(folder: object) -> Path | None:
    """The runtime environment's working directory, if it is a local folder and not an address."""
    if not isinstance(folder, str) or "://" in folder or folder.endswith((".zip", ".whl", ".tar.gz")):
        return None
    return Path(folder)


def _read_runtime_env(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        given = yaml.safe_load(path.read_text()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--runtime-env {path} cannot be read: {error}", "Name a YAML file.") from error
    if not isinstance(given, dict) or not isinstance(given.get("env_vars") or {}, dict):
        raise UsageError(f"--runtime-env {path} holds no mapping.", "Write `env_vars:`, `working_dir:` and the like.")
    return {key: _beside(path.parent, key, value) for key, value in given.items()}


def _beside(folder: Path, key: str, value: Any) -> Any:
    """A value of the runtime environment, with paths in it resolved relative to its own file.

    These commands run in a checkout with a requirements.txt of its own, which Ray would take for the job's.
    """
    if key == "py_modules" and isinstance(value, list):
        return [_beside(folder, "working_dir", module) for module in value]
    if isinstance(value, str) and key in {"working_dir", "pip", "uv", "conda"}:
        named = folder / value
        if named.is_file() or (key == "working_dir" and named.is_dir()):
            return str(named.absolute())
        if Path(value).is_file():
            tell(f"{key}: {value} is not in {folder.absolute()}, so the one in {Path.cwd()} is used")
    return value


def _name(program: str) -> str:
    """A name for a job, after what it runs: a DNS label (RFC 1035), because a RayJob may bear it."""
    word = re.sub(r"[^a-z0-9]+", "-", Path(program).name.lower()).strip("-")
    word = word if word[:1].isalpha() else f"job-{word}".strip("-")
    moment = f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    return f"{word[: ray_job.NAME_LENGTH - len(moment) - 1].rstrip('-')}-{moment}"
