"""`python -m workloads bench`: its arguments and what is done with the rows. Only a run imports Ray and torch."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads import progress, run_name, session
from workloads.errors import EXIT_OK, DataIntegrityError, InfeasibleError, UsageError
from workloads.nccl import bandwidth
from workloads.session import Place

if TYPE_CHECKING:
    from workloads.nccl.all_reduce import Layout
    from workloads.nccl.measure import Plan
    from workloads.nccl.report import Conditions

DEFAULT_SIZES = "1K:8G:2"
"""On GPUs, as far as their memory reaches: the bus bandwidth of many nodes has levelled out there."""

CPU_SIZES = "1K:64M:2"
"""On CPUs, where gloo takes a second and more for each larger size."""

DTYPES = ("float", "half", "bfloat16", "int32")


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads bench`."""
    where = parser.add_argument_group("where")
    where.add_argument("--nodes", type=int, metavar="N", help="nodes, each with its own bundle (2; embedded: 1)")
    where.add_argument(
        "--ranks-per-node", type=int, metavar="R", help="ranks on each node (its GPUs; on CPU 1; embedded: 2)"
    )
    where.add_argument("--address", metavar="HOST:PORT", help="a running Ray's GCS (the job's own; else embedded)")
    where.add_argument(
        "--timeout", type=float, default=1800, metavar="SECONDS", help="longest wait for the nodes (%(default)g)"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--sizes",
        metavar="FIRST:LAST:FACTOR",
        help=f"bytes per rank; K, M, G are powers of 1024 ({DEFAULT_SIZES}, as memory allows; on CPU {CPU_SIZES})",
    )
    what.add_argument("--dtype", choices=DTYPES, default="float", help="element type (%(default)s)")
    what.add_argument("--warmup", type=int, default=10, metavar="N", help="calls before timing (%(default)s)")
    what.add_argument(
        "--iterations", type=int, default=0, metavar="N", help="calls timed per size (as many as 0.2 s need)"
    )
    out = parser.add_argument_group("results")
    out.add_argument("--name", metavar="NAME", help="folder of the results (bench-<time>)")
    out.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="local folder for them (.oasis/results; in a job only the runs bucket)",
    )


def run_bench(args: argparse.Namespace) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        DataIntegrityError: a result was wrong; the table was written all the same, as it shows where.
    """
    given = bandwidth.parse_sizes(args.sizes) if args.sizes is not None else None
    _check(args)
    place = session.prepare(args.address)
    # Not before `prepare`: they import ray.
    from workloads.nccl import all_reduce, report

    layout, plan = _layout(args, place), _plan(args)
    sizes = given or bandwidth.parse_sizes(DEFAULT_SIZES if layout.gpus_per_node else CPU_SIZES)
    _check_sizes(sizes, plan)
    found: list[Conditions] = []

    def begin(ranks: list[dict[str, Any]]) -> None:
        environment = place.environment
        machine_type, image = (environment.machine_type, environment.image) if environment else ("", "")
        found.append(all_reduce.conditions(layout, plan, ranks, machine_type, image))
        for line in [*found[0].lines(), *bandwidth.table_header().splitlines()]:
            progress.note(line)

    def show(row: bandwidth.Row) -> None:
        progress.emit({"event": "note", "text": bandwidth.table_row(row), **report.row_record(row)})

    with session.connect(place, cpus=layout.ranks):
        rows = all_reduce.run(layout, plan, sizes, given is None, args.timeout, progress.note, begin, show)
    for line in bandwidth.table_footer(rows).splitlines():
        progress.note(line)
    _keep(args, place, found[0], rows)
    if wrong := sum(row.wrong for row in rows):
        raise DataIntegrityError(
            f"{wrong} elements of the results were wrong; the #wrong columns say at which sizes.",
            "Do not train on these nodes: run on each alone (--nodes 1) to find the bad one, and have it replaced.",
        )
    return EXIT_OK


def _layout(args: argparse.Namespace, place: Place) -> Layout:
    from workloads.capacity import check_maximum
    from workloads.nccl.all_reduce import Layout

    environment = place.environment
    gpus = environment.gpus_per_node if environment else 0
    ranks = args.ranks_per_node or gpus or (2 if place.embedded else 1)
    nodes = args.nodes or (1 if place.embedded else 2)
    if place.embedded and nodes > 1:
        raise InfeasibleError(
            f"{nodes} nodes were asked for; an embedded Ray is one node.",
            "Leave --nodes out, or submit to a cluster: `python -m workloads submit -- bench`.",
        )
    if gpus and ranks > gpus:
        raise UsageError(f"{ranks} ranks were asked for on nodes of {gpus} GPUs.", f"Give at most {gpus}.")
    if environment and gpus:
        check_maximum(nodes, environment.gpu_max_nodes, "GPU", "oasis:gpu.capacity")
    return Layout(nodes=nodes, ranks_per_node=ranks, gpus_per_node=min(gpus, ranks))


def _plan(args: argparse.Namespace) -> Plan:
    from workloads.nccl.collectives import ALL_REDUCE
    from workloads.nccl.measure import Plan

    return Plan(
        collective=ALL_REDUCE,
        dtype=args.dtype,
        warmup=args.warmup,
        iterations=args.iterations,
        seconds=0.2,
        timeout_seconds=300,
    )


def _check(args: argparse.Namespace) -> None:
    if args.name is not None:
        run_name.check("--name", args.name)
    for flag, value, least in (
        ("--nodes", args.nodes, 1),
        ("--ranks-per-node", args.ranks_per_node, 1),
        ("--warmup", args.warmup, 1),
        ("--iterations", args.iterations, 0),
        ("--timeout", args.timeout, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"{flag} is {value:g}.", f"Give at least {least}.")


def _check_sizes(sizes: tuple[int, ...], plan: Plan) -> None:
    from workloads.nccl.measure import element_size

    least = element_size(plan.dtype)
    if sizes[0] < least:
        raise UsageError(f"Size {sizes[0]} B holds no {plan.dtype}.", f"Start --sizes at {least} or more.")


def _keep(args: argparse.Namespace, place: Place, conditions: Conditions, rows: list[bandwidth.Row]) -> None:
    from workloads import storage
    from workloads.nccl import report

    name = args.name or f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    local = args.results or (None if place.environment else Path(".oasis/results"))
    folders = [storage.locate(local / name)] if local else []
    if place.environment:
        folders.append(storage.locate(f"{place.environment.runs_uri}/bench/{name}"))
    files = report.write(folders, conditions, rows)
    for folder in folders:
        progress.emit(
            {"event": "note", "text": f"{', '.join(files)} written to {folder.uri}", "results_uri": folder.uri}
        )
