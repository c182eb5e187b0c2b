"""`python -m workloads status`: one screen of what a stack's Ray has and what runs on it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from workloads import tables
from workloads.cluster import stack
from workloads.cluster.stack import DeployedStack
from workloads.errors import EXIT_OK
from workloads.jobs import command as jobs
from workloads.jobs import pending
from workloads.jobs.dashboard import Dashboard, reach
from workloads.jobs.entry_point import DRIVER_RESOURCES
from workloads.jobs.follow import Jobs
from workloads.reporting.progress import counted

_RECENT = 10


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads status`."""
    stack.add_stack_arguments(parser)


def run_status(args: argparse.Namespace) -> int:
    """Print the screen; returns the exit code."""
    deployed = stack.find(args)
    with reach(deployed) as dashboard:
        print(head_line(deployed, dashboard.address()))
        print()
        tables.show(_nodes(dashboard))
        for line in pending.lines(pending.look(deployed)):
            print(line)
        newest = jobs.rows(deployed, Jobs(dashboard))
        print()
        if newest:
            tables.show(jobs.table(newest[:_RECENT], time.time()))
        else:
            print("no jobs yet; `python -m workloads submit -- COMMAND` starts one")
    return EXIT_OK


def head_line(deployed: DeployedStack, address: str) -> str:
    """Name of this cluster, its limit of growth, and the address of its dashboard now."""
    environment = deployed.environment
    grows = f"up to {environment.cpu_workers_max} CPU workers"
    if environment.gpu_max_nodes:
        grows += f" and {environment.gpu_max_nodes} x {environment.machine_type}"
    return f"Ray cluster {environment.ray_cluster_name} in {environment.zone}, {grows}; dashboard {address}"


def node_rows(data: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Role, address, state and use of each node, the head first.

    Args:
        data: what the dashboard says at `/nodes?view=summary`.
    """
    rows = []
    for node in data["summary"]:
        raylet = node.get("raylet", {})
        node_id = str(raylet.get("nodeId", ""))
        used = data.get("nodeLogicalResources", {}).get(node_id) or ""
        role = "head" if raylet.get("isHeadNode") else "worker"
        rows.append((role, str(node.get("ip", "")), str(raylet.get("state", "?")).lower(), _use(used)))
    return sorted(rows, key=lambda row: (row[0] != "head", row[1]))


def _nodes(dashboard: Dashboard) -> Table:
    columns = Table(box=None, pad_edge=False)
    for name in ("NODE", "ADDRESS", "STATE", "IN USE"):
        columns.add_column(name, no_wrap=name != "IN USE")
    for row in node_rows(dashboard.get("/nodes?view=summary")["data"]):
        columns.add_row(*row)
    return columns


def _use(lines: str) -> str:
    """Ray's lines of `used/total RESOURCE` in one, without the object store, which is part of the memory.

    The head's resource for drivers is told as the jobs that hold some: its total is made up, and no limit that is met.
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
