"""`python -m workloads bench`: its arguments and the handling of its rows. Only a run imports Ray and torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from workloads import dry_run, run_name
from workloads.cluster import session
from workloads.command_parser import seconds
from workloads.errors import EXIT_OK, DataIntegrityError, FabricError, UsageError, WorkloadError
from workloads.nccl.definitions import bandwidth
from workloads.nccl.definitions.stages import ALGORITHMS, EXTENTS
from workloads.nccl.results import compare
from workloads.nccl.scaling import predict
from workloads.reporting import progress

if TYPE_CHECKING:
    from workloads.nccl.ranks.driver import StoppedError
    from workloads.nccl.request import BenchmarkRequest
    from workloads.nccl.results.measured import Measured
    from workloads.storage.folders import Folder

IMPORTS = ("workloads.nccl.ranks.rank",)
"""Modules that each node imports once for all ranks."""

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
DTYPES = ("float", "half", "bfloat16", "int32")

DESCRIPTION = """\
Measure and check collectives between the processes of one or more nodes: NCCL on GPUs, gloo on CPUs.

Sizes, columns, factors and #wrong are those of NVIDIA's nccl-tests. Every result is checked element by element, before
and after it is timed. On GPUs it goes in stages: each node alone, every pair of nodes, then all. An all-reduce over all
nodes is measured by NCCL's choice, which may be a tree that prints more than the wire carries, and over the ring; that
of a pair over the ring only. A slow node, rail or rank is named."""

EPILOG = f"""\
examples:
  bench                                        all-reduce between two processes on this machine
  bench --dry-run --nodes 2                    what would be asked of Ray and measured, nothing started
  bench --op all_gather --dtype bfloat16       one of {", ".join(OPS)}
  bench --nodes 2 --stages all --sizes 1G:8G   the large sizes on all nodes at once, without smaller stages
  bench compare before/all_reduce.jsonl after/all_reduce.jsonl
  bench predict --model convnext-base --nodes 1,2,4,16,128,1000

the time in the table is the slowest rank's (nccl-tests -a 3); --average gives the mean over the ranks (its default).
Ends with 0 if all is well, 6 if a result was wrong, 9 if the fabric is not what the stack promised."""


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads bench`, and its sub-words."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    words = parser.add_subparsers(dest="command", metavar="[compare | predict]", title="instead of measuring")
    compare.add_compare_arguments(words.add_parser("compare", help="two results, and whether they differ"))
    predict.add_predict_arguments(words.add_parser("predict", help="how training would scale, from a measured curve"))
    where = parser.add_argument_group("where")
    add = where.add_argument
    add("--nodes", type=int, metavar="N", help="nodes, each with its own bundle (2; embedded: 1)")
    add("--ranks-per-node", type=int, metavar="R", help="ranks on each node (its GPUs; on CPU 1; embedded: 2)")
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto: nccl where the stack has GPUs")
    add("--address", metavar="HOST:PORT", help="a running Ray's GCS (the job's own; else embedded)")
    add("--timeout", type=seconds, default=1800, metavar="SECONDS", help="longest wait for the nodes (%(default)g)")
    what = parser.add_argument_group("what")
    add = what.add_argument
    add("--op", choices=OPS, default="all_reduce", help="collective (%(default)s)")
    add(
        "--sizes",
        metavar="FIRST:LAST:FACTOR",
        help="bytes of a rank; K, M, G are powers of 1024 "
        f"({bandwidth.GPU_SIZES}, as memory allows, for pairs only the largest; on CPU {bandwidth.CPU_SIZES})",
    )
    add("--dtype", choices=DTYPES, default="float", help="element type (%(default)s)")
    add("--stages", choices=EXTENTS, help="all nodes at once; each node first; every pair, too (pairs; on CPU all)")
    add("--algo", choices=ALGORITHMS, metavar="NAME", help=f"force NCCL's algorithm: {', '.join(ALGORITHMS)}")
    add("--warmup", type=int, default=10, metavar="N", help="calls before timing (%(default)s)")
    add("--iterations", type=int, default=0, metavar="N", help="calls timed per size (as many as take 0.2 s)")
    add("--average", action="store_true", help="report the mean over the ranks, not the slowest one's time")
    out = parser.add_argument_group("results")
    add = out.add_argument
    add("--name", metavar="NAME", help="folder of the results (bench-TIME-DIGITS)")
    add("--results", type=Path, metavar="DIR", help="local folder (.oasis/results; in a job only the runs bucket)")
    dry_run.add_dry_run_arguments(parser)


def run_bench(args: argparse.Namespace) -> int:
    """Run the benchmark, or one of its sub-words; returns the exit code.

    Raises:
        DataIntegrityError: a result was wrong; the tables were written anyway, because they show where.
        FabricError: the path taken, or its speed, is not what the stack promised; the tables were written.
        StoppedError: not all stages were measured; the measured stages and NCCL's logs were written.
        UsageError: a value is out of its bounds, or the name has results already.
    """
    if args.command:
        return (compare.run_compare if args.command == "compare" else predict.run_predict)(args)
    check_bench(args)
    place = session.prepare(args.address)
    if not args.dry_run:
        progress.wait("loading torch and Ray, which takes 3 to 15 s")
    # Not before `prepare`: these modules import ray.
    from workloads.nccl.ranks import driver
    from workloads.nccl.request import resolve
    from workloads.nccl.results import report
    from workloads.storage.folders import check_writable, locate

    if args.dry_run:
        return explain_bench(args, place)
    request = resolve(args, place)
    for folder in map(locate, request.places):
        check_writable(folder)
        _check_unused(folder, args.op)
    layout = request.layout
    printer = report.Printer()
    with session.connect(place, cpus=layout.ranks, imports=IMPORTS):
        try:
            measured = driver.run(
                layout,
                request.plan,
                request.rounds,
                request.sizes,
                shorten=request.shorten,
                wait_seconds=args.timeout,
                promise=place.environment,
                say=progress.wait,
                begin=printer.begin,
                show=printer.show,
            )
        except driver.StoppedError as error:
            _stopped(error, request)
    printer.end()
    return _conclude(measured, request.places)


def check_bench(args: argparse.Namespace) -> None:
    """Refuse arguments that no place can measure.

    Raises:
        UsageError: a value is out of its bounds.
    """
    if args.command:
        return
    if args.sizes is not None:
        bandwidth.parse_sizes(args.sizes)
    if args.name is not None:
        run_name.check("--name", args.name)
    for flag, value, least in (
        ("--nodes", args.nodes, 1),
        ("--ranks-per-node", args.ranks_per_node, 1),
        ("--warmup", args.warmup, 1),
        ("--iterations", args.iterations, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"{flag} is {value:g}.", f"Give at least {least}.")


def _check_unused(folder: Folder, op: str) -> None:
    """Refuse a folder with complete results of this collective, which others may be comparing with. Incomplete results
    are overwritten, because a queued job that is put back measures once more."""
    from workloads.nccl.results import records

    name = f"{op}{records.SUFFIX}"
    if name in folder.files() and not records.read(folder.read(name), folder.uri).stopped:
        raise UsageError(
            f"{folder.uri} holds results of {op} already, which are never overwritten.",
            "Choose another --name, or leave it out.",
        )


def explain_bench(args: argparse.Namespace, place: session.Place) -> int:
    """Print the values that `bench` would use in a place; returns the exit code.

    Raises:
        WorkloadError: it could not run there.
    """
    from workloads.nccl.request import resolve

    if args.command:
        raise UsageError(f"bench {args.command} needs no cluster.", "Run it here, without `submit`.")
    check_bench(args)
    request = resolve(args, place)
    settings = dry_run.explain(args, add_bench_arguments, request.settings(place))
    return dry_run.show(settings, [request.layout.bundle] * request.layout.nodes, "STRICT_SPREAD", args.json)


def _stopped(error: StoppedError, request: BenchmarkRequest) -> NoReturn:
    """Show and keep the measurements from before a rank failed, and NCCL's logs until then; then fail."""
    from workloads.nccl.results import report
    from workloads.storage import folders as storage

    judged = report.show_findings(error.measured)
    try:
        folders = [storage.locate(place) for place in request.places]
        files = report.write_logs(folders, request.plan.collective.name, error.logs)
        if error.measured:
            files += report.write(folders, error.measured, judged, error.problem)
        for folder in folders if files else ():
            what = "the stages that were finished" if error.measured else "NCCL's logs"
            text = f"{what} written to {folder.uri}"
            progress.emit({"event": "note", "text": text, "results_uri": folder.uri})
    except WorkloadError as unkept:  # the error that stopped the run matters more
        progress.note(f"nothing of it could be kept: {unkept}")
    raise error.__cause__ if isinstance(error.__cause__, KeyboardInterrupt) else error


def _conclude(measured: Sequence[Measured], places: Sequence[str]) -> int:
    """Judge, name slow nodes or ranks, and keep everything; only then fail."""
    from workloads.nccl.results import findings, report
    from workloads.storage import folders as storage

    judged = report.show_findings(measured)
    for folder in map(storage.locate, places):
        files = report.write([folder], measured, judged)
        shown = ", ".join(name for name in files if "/" not in name)
        progress.emit({"event": "note", "text": f"{shown} written to {folder.uri}", "results_uri": folder.uri})
    if wrong := sum(row.wrong for one in measured for row in one.rows):
        raise DataIntegrityError(
            f"{wrong} elements of the results were wrong; the #wrong columns say at which sizes.",
            "Do not train on these nodes: run on each alone (--nodes 1) to find the bad one, and have it replaced.",
        )
    if bad := findings.broken(judged):
        raise FabricError(
            f"The fabric is not as it must be: {bad}",
            "Do not train on these nodes; the table and NCCL's logs, in the results, say on which node and NIC.",
        )
    return EXIT_OK
