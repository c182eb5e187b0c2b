"""`python -m workloads explain`: what a log of the kernel, of NCCL or of a worker says, and what to do. No Ray."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workloads import progress
from workloads.errors import EXIT_OK, UsageError
from workloads.nccl import faults, path, verdict

EPILOG = """\
examples:
  explain logs/all_reduce-all-rank3.log        one of the logs that bench and train's check of the fabric keep
  gcloud compute instances get-serial-port-output NODE --zone ZONE | python -m workloads explain -
                                               the Xids of a node, which its kernel writes to the console"""


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads explain`."""
    parser.epilog = EPILOG
    parser.add_argument("logs", nargs="+", metavar="FILE", help="a log, or - for standard input")


def run_explain(args: argparse.Namespace) -> int:
    """Print what each log says; returns the exit code, 0.

    Raises:
        UsageError: a file cannot be read.
    """
    for name in args.logs:
        text = _read(name)
        found = faults.in_text(text)
        if path.read(text).recognised:
            progress.note(f"{name}: {verdict.read({0: text}, 0, False).line()}")
        for fault in found:
            progress.note(f"{name}: {fault.severity}: {fault}")
        if not found:
            progress.note(f"{name}: no Xid and no error of NCCL")
    return EXIT_OK


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(errors="replace")
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read: {error.strerror}.", "Give a file, or - for standard input."
        ) from error
