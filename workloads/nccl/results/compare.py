"""`python -m workloads bench compare A B`: is B slower than A by more than either varies? Needs no torch and no Ray."""

from __future__ import annotations

import argparse

from rich.table import Table

from workloads import tables
from workloads.errors import EXIT_OK, WorkloadFailedError
from workloads.nccl.definitions.bandwidth import format_size
from workloads.nccl.results import stored
from workloads.nccl.results.comparison import Comparison, compare

DESCRIPTION = """\
Whether the results B differ from the results A by more than noise, for each collective and stage that both have: of
small messages the latency, of large ones the bandwidth. Needs no GPU."""

EPILOG = """\
A and B are each a .jsonl file of results, or a folder of them, on a disk or gs://: the runs bucket has them in
bench/<name>. Several results of one collective on one side are repetitions, from which the noise is known better.

exit codes:
  0 compared, whatever came out   2 not comparable   6 a file is damaged or cut off
  5 with --fail-on-regression: slower beyond noise, or too noisy to judge
"""

QUIETER = (
    "Give several results on each side: run `bench` again with another --results inside the same folder, and name the "
    "folder. More calls (--iterations), more sizes and nothing else on the nodes help, too."
)
"""What makes the noise smaller."""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads bench compare`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("before", metavar="A", help="the earlier results")
    parser.add_argument("after", metavar="B", help="the later ones")
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="exit with 5 where B is slower beyond noise, or noise hides it",
    )


def run_compare(args: argparse.Namespace) -> int:
    """Print the comparison; returns the exit code.

    Raises:
        UsageError: a place has no results, or the two cannot be compared.
        DataIntegrityError: a file is damaged or cut off.
        WorkloadFailedError: B is slower beyond noise or may be for all that shows, and that was to be a failure.
    """
    found = compare(stored.load(args.before), stored.load(args.after))
    slower = [one for one in found.lines if one.change.real and one.change.size > 0]
    show(found)
    if slower and args.fail_on_regression:
        worst = max(slower, key=lambda one: one.change.size)
        raise WorkloadFailedError(
            f"{args.after} is slower than {args.before} beyond noise in {len(slower)} of {len(found.lines)} "
            f"comparisons, most in {worst.key} ({worst.regime}): {worst.words}.",
            f"Look at what differs above. {QUIETER}",
        )
    hidden = [one for one in found.lines if one.change.hidden]
    if hidden and args.fail_on_regression:
        raise WorkloadFailedError(
            f"{len(hidden)} of {len(found.lines)} comparisons of the two are too noisy to judge.",
            QUIETER,
        )
    return EXIT_OK


def show(found: Comparison) -> None:
    """Print the table, and beneath it what else there is to know."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("collective", "stage", "sizes", "", "A", "B", "B against A"):
        table.add_column(heading, justify="right" if heading in ("A", "B") else "left", no_wrap=True)
    for one in found.lines:
        style = "yellow" if one.change.hidden else ""
        if one.change.real:
            style = "red" if one.change.size > 0 else "green"
        sizes = " to ".join(dict.fromkeys(format_size(size) for size in one.sizes))
        values = (f"{value:.4g} {one.unit}" for value in (one.before, one.after))
        table.add_row(
            f"{one.key.op} {one.key.dtype}", one.key.stage, sizes, one.regime, *values, one.words, style=style
        )
    tables.show(table)
    quieter = [f"too noisy to judge: {QUIETER}"] if any(one.change.hidden for one in found.lines) else []
    for line in (*quieter, *found.differences, *found.left_out):
        print(f"# {line}")
