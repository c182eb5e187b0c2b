"""How many trials run at a time: as many as the place can hold, and never without limit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from workloads.environment import ClusterEnvironment
from workloads.errors import InfeasibleError
from workloads.reporting.progress import counted


def embedded(workers: int) -> int:
    """Trials that an embedded Ray is started for: as many as this machine's cores hold, but at least one."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def of_gpus(workers: int, gpus_per_node: int, nodes: int) -> int:
    """Trials that so many GPU nodes hold together; one that fits a node never straddles two.

    Raises:
        InfeasibleError: not even one.
    """
    fitting = (
        nodes * (gpus_per_node // workers) if workers <= gpus_per_node else nodes // math.ceil(workers / gpus_per_node)
    )
    if fitting < 1:
        raise InfeasibleError(
            f"{counted(workers, 'GPU')} asked for per trial; this stack has at most {counted(nodes, 'node')} of "
            f"{gpus_per_node}.",
            "Ask for fewer --workers, or raise oasis:gpu.capacity in the stack's settings and run `pulumi up`.",
        )
    return fitting


def of_cpus(workers: int, nodes: list[float], most_nodes: int) -> int:
    """Trials that CPU nodes hold together; at least one, whose own wait for capacity then has the verdict.

    Args:
        workers: of a trial, one CPU each.
        nodes: CPUs of the nodes that are up.
        most_nodes: that there can be, by the stack; 0 where that is not known.
    """
    return max(1, int(max(sum(nodes), most_nodes * max(nodes, default=0)) // workers))


def of_cluster(workers: int, environment: ClusterEnvironment | None) -> int:
    """Trials that the Ray we are connected to can hold, with the nodes that its stack can add.

    Raises:
        InfeasibleError: not even one.
    """
    import ray

    from workloads.cluster import autoscaler

    if environment is not None and environment.gpus_per_node:
        return of_gpus(workers, environment.gpus_per_node, environment.gpu_max_nodes)
    nodes = [float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    reply = autoscaler.read()
    grows = reply is None or reply.seen_version is not None
    return of_cpus(workers, nodes, environment.cpu_workers_max if environment and grows else 0)


def choose(asked: int | None, fitting: int, workers: int, say: Callable[[str], None]) -> int:
    """Trials at a time.

    Args:
        asked: with --concurrency, if it was.
        fitting: how many the place holds.
        workers: of each.
        say: told what was decided.
    """
    chosen = min(asked or fitting, fitting)
    more = f"; {asked} were asked for, and no more fit" if asked and asked > fitting else ""
    say(f"{counted(chosen, 'trial')} at a time, {counted(workers, 'worker')} each{more}")
    return chosen
