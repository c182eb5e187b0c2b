"""The cost of a job's GPU nodes, shown before it is submitted: hourly, and at most."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.environment import ClusterEnvironment
from workloads.jobs.entry_point import Demand
from workloads.reporting.cost import HOUR
from workloads.reporting.progress import counted

TAKES_GPUS = ("train", "tune", "sweep", "bench")
"""Commands of this package whose workers run on GPU nodes if the stack has some."""


def of_queue(environment: ClusterEnvironment, nodes: int) -> str:
    """One sentence on a job of the queue.

    Args:
        environment: the stack's outputs.
        nodes: number of nodes that it gets together.
    """
    price = environment.node_hour_usd(queued=True)
    if price is None:
        return _unknown(environment)
    hour, life = nodes * price, environment.gpu_queue_run_seconds / HOUR
    most = (
        f", and at most {hour * life:,.0f} USD each time that it gets them: Google takes them after {life:g} h"
        if life
        else ""
    )
    return f"{_nodes(nodes)} {hour:,.2f} USD an hour at list price, from arrival to the job's end{most}"


def of_ladder(environment: ClusterEnvironment, command: Sequence[str], demand: Demand) -> str:
    """One sentence on a job that may make Ray add GPU nodes; empty if it will not.

    Args:
        environment: the stack's outputs.
        command: as it was given.
        demand: resources that the command itself takes.
    """
    if not environment.gpu_max_nodes or not takes_gpus(command, demand):
        return ""
    price = environment.node_hour_usd(queued=False)
    if price is None:
        return _unknown(environment)
    most = environment.gpu_max_nodes
    return (
        f"each GPU node that it has added costs up to {price:,.2f} USD an hour at list price, until some minutes after "
        f"its last use; all {most} that the stack can have, {most * price:,.2f} USD"
    )


def takes_gpus(command: Sequence[str], demand: Demand) -> bool:
    """Whether a job may make Ray add GPU nodes, if there are any."""
    return command[0] in TAKES_GPUS or bool(demand.amounts.get("GPU"))


def _nodes(nodes: int) -> str:
    return f"its {counted(nodes, 'node')} {'costs' if nodes == 1 else 'cost'}"


def _unknown(environment: ClusterEnvironment) -> str:
    return f"the price of its GPU nodes is not known in {environment.region}: run `make prices`, then `pulumi up`"
