"""`submit --queue`: a job of a fixed size that Kueue holds until all its nodes are available together.

A job that is known to fail is refused before it enters the queue: its turn may come hours later, with nobody there, and
a job that Ray refuses then would keep its nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.runtime_env import RuntimeEnv

from workloads import run_name
from workloads.cluster.stack import DeployedStack
from workloads.environment import ClusterEnvironment
from workloads.errors import EXIT_INTERRUPTED, InfeasibleError, UsageError, WorkloadError
from workloads.jobs import entry_point, queue, ray_job, working_dir
from workloads.jobs.follow import Follower, again, detached, tell
from workloads.jobs.job import Job
from workloads.reporting.progress import counted

_BENCH_NODES = 2  # default of `bench` without --nodes


def add_queue_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a job for the queue."""
    group = parser.add_argument_group(
        "GPU nodes from a queue",
        "For a job that needs all its nodes at once: it gets them together, on a cluster\n"
        "of its own, or none. Until then it waits in line, and nothing is billed; that can\n"
        "take hours, and the job starts whether you are there or not.",
    )
    group.add_argument("--queue", action="store_true", help="wait in the stack's queue for GPU nodes")
    group.add_argument("--nodes", type=int, metavar="N", help="how many GPU nodes (1)")


def refuse_arguments(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other, whatever the stack.

    Raises:
        UsageError: they do.
    """
    if args.nodes is not None and not args.queue:
        raise UsageError(
            f"--nodes is {args.nodes} without --queue, but only a job of the queue has a number of nodes of its own.",
            "Add --queue; or write --nodes after `--`, if it is the command's.",
        )
    if args.team and not args.queue:
        raise UsageError(
            f"Team {args.team} has no Ray that always runs: each of its jobs has its own, and waits for it in the "
            "team's queue.",
            "Add --queue, and --nodes for more than one GPU node; or leave --team out for the stack's own Ray.",
        )
    if not args.queue:
        return
    if args.ray_job:
        raise UsageError(
            "--queue and --ray-job were both given: a job of the queue has a cluster of its own anyway.",
            "Give --queue for nodes that come together, --ray-job for nodes that come one by one.",
        )
    if args.nodes is not None and args.nodes < 1:
        raise UsageError(f"--nodes is {args.nodes}; it must be at least 1.", "Say how many GPU nodes the job needs.")
    if args.memory is not None or "memory" in entry_point.read(args).amounts:
        raise UsageError(
            "Memory was asked for the command itself, but KubeRay cannot pass that on for a job of the queue.",
            "Leave it out, or ask for --num-cpus in its place.",
        )


def named(command: list[str]) -> list[str]:
    """The command with a name for its run, if it has a run: with it, a job that KubeRay submits again resumes the run.

    Args:
        command: as it was given; its own run name takes precedence.
    """
    if command[0] not in ("train", "tune", "sweep") or _value(command, "--run"):
        return command
    return [command[0], "--run", run_name.unnamed(command[0]), *command[1:]]


def refuse_impossible(command: Sequence[str], nodes: int, ours: bool, environment: ClusterEnvironment) -> None:
    """Refuse a job that the stack's queue could not take, or that could do nothing with its nodes.

    Args:
        command: as it was given.
        nodes: number of GPU nodes requested.
        ours: whether the command is one of this package.
        environment: the stack's outputs.

    Raises:
        UsageError: the stack has no queue, or the command has no fixed size.
        InfeasibleError: more nodes than the queue's jobs, or the job's command, can ever have.
    """
    if not environment.gpu_queue:
        raise UsageError(
            "This stack has no queue for GPU nodes.",
            "Add an entry with mode queued to oasis:gpu.capacity and run `pulumi up`; without one, `submit --ray-job` "
            "gives a job a cluster of its own, and plain `submit` runs it on the stack's.",
        )
    if nodes > environment.gpu_queue_nodes:
        raise InfeasibleError(
            f"--nodes is {nodes}; all jobs of the queue {environment.gpu_queue} can have "
            f"{counted(environment.gpu_queue_nodes, 'node')} together.",
            f"Ask for fewer, or raise {_most(environment.team)} and run `pulumi up`.",
        )
    if ours and command[0] == "train":
        _check_workers(_value(command, "--workers"), nodes, nodes * environment.gpus_per_node)
    if ours and command[0] == "bench" and not {"predict", "compare"} & set(command):
        _check_nodes(_value(command, "--nodes") or str(_BENCH_NODES), nodes)


def _most(team: str) -> str:
    """The setting that limits how many nodes jobs may have together."""
    return f"max_gpu_nodes of {team} in oasis:teams" if team else "max_nodes in the queued entry of oasis:gpu.capacity"


def run(
    args: argparse.Namespace, given: Job, nodes: int, deployed: DeployedStack, interrupted: Callable[[Follower], int]
) -> int:
    """Put a job into the queue, wait there, follow it, and return its exit code.

    Args:
        args: arguments of the command.
        given: the job.
        nodes: number of GPU nodes, which it gets all at once.
        deployed: the stack, whose queue can take it.
        interrupted: what Ctrl-C does once it runs.
    """
    job = replace(given, runtime_env=_addressed(given, deployed))
    body = ray_job.queued_manifest(job, deployed, ray_job.spec_of_cluster(deployed), nodes)
    entry_point.refuse_impossible(job.demand, entry_point.groups(body["spec"]["rayClusterSpec"]))
    try:
        _put(given, job, deployed)
        _create(deployed, job.name, body)
        told = f"job {job.name} is in the queue {deployed.environment.gpu_queue} for {counted(nodes, 'node')}"
        if args.detach:
            tell(told)
            return detached(args, job.name)
        tell(f"{told}; Ctrl-C takes it out")
        return queue.through(deployed, job.name, args.results, again(args, job.name), interrupted)
    except KeyboardInterrupt:
        return _leave(deployed, job, body, again(args, job.name))


def _addressed(job: Job, deployed: DeployedStack) -> dict[str, Any]:
    """The runtime environment with the address of the packed folder, in the form of Ray's own schema."""
    environment = {key: value for key, value in job.runtime_env.items() if key != "excludes"}
    if _folder(job) is not None:
        environment["working_dir"] = f"{queue.folder(deployed, job.name)}/{queue.WORKING_DIR}"
    modules = environment.get("py_modules") or ()
    for what in (environment.get("working_dir"), *(modules if isinstance(modules, list) else ())):
        if isinstance(what, str) and "://" not in what:
            raise UsageError(
                f"The runtime environment names {what} on this machine, and a job of the queue begins without it.",
                "Put it into the folder of --working-dir, which travels with the job, or give a gs:// address.",
            )
    try:
        return RuntimeEnv(**environment).to_dict()
    except (TypeError, ValueError) as error:
        raise UsageError(f"Ray does not accept the runtime environment: {error}", "Correct --runtime-env.") from error


def _folder(job: Job) -> Path | None:
    """The working directory, if it is a folder on this machine."""
    given = job.runtime_env.get("working_dir")
    return Path(given) if isinstance(given, str) and "://" not in given and Path(given).is_dir() else None


def _put(given: Job, job: Job, deployed: DeployedStack) -> None:
    """Upload the working directory to where Ray fetches it when the job begins."""
    folder = _folder(given)
    if folder is None:
        return
    from workloads.storage.folders import locate

    content = working_dir.pack(folder, given.runtime_env.get("excludes") or ())
    locate(queue.folder(deployed, job.name)).write(queue.WORKING_DIR, content)


def _create(deployed: DeployedStack, name: str, body: dict[str, Any]) -> None:
    try:
        deployed.ask("create", "--filename", "-", given=json.dumps(body))
    except WorkloadError:
        # The upload may have succeeded although the answer was lost; nobody would know of it.
        with contextlib.suppress(WorkloadError):
            if ray_job.find(deployed, name) is None or ray_job.remove(deployed, name):
                queue.tidy(deployed, ray_job.status_of(body))
        raise


def _leave(deployed: DeployedStack, job: Job, body: dict[str, Any], attach: str) -> int:
    """Take a job out of the queue, unless Ctrl-C is pressed again."""
    try:
        print(f"taking job {job.name} out of the queue; Ctrl-C again leaves it there", file=sys.stderr)
        queue.take_out(deployed, ray_job.status_of(body))
    except KeyboardInterrupt:
        print(f"left as it was; if it is still in the queue, `{attach}` follows it", file=sys.stderr)
    return EXIT_INTERRUPTED


def _check_workers(given: str, nodes: int, gpus: int) -> None:
    have = f"{counted(nodes, 'node')} with {counted(gpus, 'GPU')}"
    if ":" in given:
        raise UsageError(
            f"--workers is {given}, and a job of the queue has a fixed size: {have}, one worker each.",
            f"Give --workers {gpus}; without --queue a run grows and shrinks between two numbers.",
        )
    if given.isdecimal() and gpus and int(given) > gpus:
        raise InfeasibleError(
            f"--workers is {given}, and the job would have {have}, one worker each.",
            f"Give --workers {gpus} at most, or more --nodes.",
        )
    if not given and nodes > 1:
        tell(f"the job has {have}; train uses the GPUs of one node unless it is given --workers {gpus}")
    elif nodes > 1 and given.isdecimal() and int(given) <= gpus - gpus // nodes:
        tell(f"the job has {have}, of which train uses {given} unless it is given --workers {gpus}")


def _check_nodes(asked: str, nodes: int) -> None:
    if asked.isdecimal() and int(asked) > nodes:
        raise InfeasibleError(
            f"bench measures {asked} nodes, and the job would have {counted(nodes, 'node')} of its own.",
            f"Give --nodes {asked} before the `--` as well.",
        )
    if asked.isdecimal() and int(asked) < nodes:
        tell(f"the job has {counted(nodes, 'node')}; bench measures {asked} unless it is given --nodes {nodes}")


def _value(command: Sequence[str], flag: str) -> str:
    """The value of an option in a command; empty without it."""
    for at, word in enumerate(command):
        if word == flag and at + 1 < len(command):
            return command[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return ""
