"""`submit --dry-run`: what a command would use as a job, seen from here with the stack's values; nothing is submitted.

Only the stack's outputs are read: neither its Ray nor its token is asked for.
"""

from __future__ import annotations

import argparse

from workloads import __main__ as command_line
from workloads import dry_run
from workloads.cluster import stack
from workloads.cluster.session import Place
from workloads.jobs.entry_point import Demand
from workloads.jobs.follow import tell


def show(args: argparse.Namespace, command: list[str], entrypoint: str, demand: Demand) -> int:
    """Print the values of a command that explains itself, of any other the entry point and the stack's.

    Args:
        args: of `submit`.
        command: as it was typed after `--`.
        entrypoint: what Ray would be given of it.
        demand: what that takes.

    Returns:
        The exit code.

    Raises:
        WorkloadError: the stack cannot be found, or the command could not run there.
    """
    cluster = stack.outputs(args)
    ray = "a cluster of its own" if args.ray_job else f"RayCluster {cluster.ray_cluster_name}"
    place = Place(address=ray, environment=cluster, told_by=stack.origin(args))
    known = command_line.COMMANDS.get(command[0])
    if known is None or not known.explains:
        settings = {"entrypoint": (entrypoint, "the command"), **dry_run.of_stack(place)}
        return dry_run.show(settings, [demand.amounts], "STRICT_PACK", args.json)
    tell(f"not submitted: `{entrypoint}`, which takes {demand} for itself")
    return command_line.explain(command, place, args.json)
