"""The command line of a benchmark: its options, its figures printed and kept, and its exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.harness import figures
from benchmarks.harness.figures import Record
from workloads import closed_pipe, interruption
from workloads.errors import EXIT_INTERRUPTED, WorkloadError


def parser(results: Path, description: str | None) -> argparse.ArgumentParser:
    """A parser that has `--results` already.

    Args:
        results: the file in `benchmarks/` that is named like the benchmark.
        description: the benchmark's docstring, which `--help` shows as it is.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{results.stem}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(results=results)
    add_results(made, results)
    return made


def add_results(to: argparse.ArgumentParser, results: Path) -> None:
    """Add the option for the file that keeps the figures, to a parser or to one of its subcommands."""
    told = f"file that keeps the figures (benchmarks/{results.name})"
    # A subcommand's own default would replace what was given before the subcommand.
    to.add_argument("--results", type=Path, default=argparse.SUPPRESS, metavar="FILE", help=told)


def add_parts(to: argparse.ArgumentParser, parts: Collection[str]) -> None:
    """Add the positional arguments `parts`: the parts of a benchmark to run; all if none is given."""

    def part(name: str) -> str:
        # argparse's own `choices` would refuse to be given none.
        if name not in parts:
            raise argparse.ArgumentTypeError(f"no such part: {name}; there are {', '.join(parts)}")
        return name

    to.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"of {', '.join(parts)} (all)")


def conclude(results: Path, found: Record, wrong: Sequence[object] = ()) -> int:
    """Keep the figures and print them; returns the exit code, 1 if something is not as it must be.

    Args:
        results: the file.
        found: the figures.
        wrong: each thing that is not as it must be; printed on standard error.
    """
    try:
        figures.write(results, found)  # first: printing ends the command if its reader has left, as with `| head`
    finally:  # even if the disk refuses, so that they are not lost
        print(json.dumps(found, indent=2))
    for problem in wrong:
        figures.say(f"wrong: {problem}")
    return int(bool(wrong))


def exit_code(main: Callable[[], int]) -> int:
    """The exit code of a benchmark; a failure that `workloads` knows gives its own code and two sentences."""
    try:
        return main()
    except WorkloadError as error:
        print(f"error: {error.problem}\n{error.remedy}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def run(main: Callable[[], int]) -> NoReturn:
    """End this process with the benchmark's exit code, and all that it started, even if SIGTERM ends it."""
    interruption.install()
    sys.exit(closed_pipe.run(lambda: exit_code(main)))
