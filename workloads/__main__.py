"""`python -m workloads`: one command line in tests, on a laptop and in a job.

A command's module is imported only when the command is used, so that a Ray image without torch runs everything except
the workloads themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from workloads import closed_pipe, emulated, interruption
from workloads.command_parser import CommandParser
from workloads.environment import API_SERVER_VARIABLE, EnvironmentContractError
from workloads.errors import EXIT_INTERRUPTED, PlaceError, UsageError, WorkloadError

if TYPE_CHECKING:
    from workloads.cluster.session import Place

EPILOG = """\
first steps:
  python -m workloads doctor                       is this place fit for the workloads?
  python -m workloads bench                        all-reduce between two processes on this machine
  python -m workloads submit --stack dev -- bench --nodes 2
                                                   the same on the stack's GPU nodes
  python -m workloads submit --stack dev --dry-run -- train --recipe imagenet_a3_ultra
                                                   every value that this job would use, and where it came from
  python -m workloads submit --stack dev --working-dir . -- python3 hello_world.py
                                                   any command of yours, with the files beside it
  python -m workloads submit --stack dev --ray-job -- train
                                                   on a cluster of its own, removed with the job
  python -m workloads submit --stack dev --queue --nodes 2 -- train --workers 16
                                                   on two GPU nodes that come together, or not yet
  python -m workloads jobs list --stack dev        what runs there
  python -m workloads idle --stack dev             whose GPUs are idle; with --end, stop or suspend them
  python -m workloads runs list --stack dev        what runs have left: newest step, size, age
  python -m workloads tune --space FILE            search hyperparameters; workloads/tune/space.yaml is one to copy
  python -m workloads sweep --space FILE           train every combination of them

exit codes:
  0 ok   2 usage   3 infeasible   4 no capacity in time   5 failed   6 wrong data or wrong collective result
  7 token, key or permission   8 this place lacks something   9 bad fabric   10 budget spent
  130 interrupted   141 the reader closed the pipe (| head)
  `submit` and `jobs attach` exit with the job's code. For a command that is not one of these it is the command's own,
  and their last line says so
"""


@dataclass(frozen=True)
class Command:
    """One command and the module that has its `add_<name>_arguments` and `run_<name>`."""

    module: str
    help: str
    needs: str = "ray"
    """Library that the command cannot do without, looked for before anything is started."""
    explains: bool = False
    """Whether it has `--dry-run`, and its module `explain_<name>`, which says the same of another place than here, and
    `check_<name>`, which refuses arguments that are wrong in any place."""
    action: str = ""
    """What it does where none of its actions is named."""


COMMANDS = {
    "doctor": Command("workloads.doctor.command", "check that this place is fit for the workloads", "workloads"),
    "train": Command("workloads.convnext.run.train", "train a ConvNeXt image classifier", "torch", explains=True),
    "tune": Command(
        "workloads.tune.command", "search hyperparameters, stopping poor trials early", "torch", explains=True
    ),
    "sweep": Command(
        "workloads.tune.command", "train every combination of listed hyperparameters", "torch", explains=True
    ),
    "bench": Command("workloads.nccl.command", "measure and check collectives between nodes", "torch", explains=True),
    "explain": Command("workloads.nccl.explain", "say what the Xids and NCCL errors of a log mean", "workloads"),
    "digits": Command("workloads.convnext.images.digits", "write a small data set of real images", "sklearn"),
    "shards": Command("workloads.convnext.images.pack", "turn an image folder into tar shards", "numpy"),
    "submit": Command("workloads.jobs.submit", "run any command as a job on a stack's Ray"),
    "jobs": Command("workloads.jobs.command", "list, follow and stop jobs", action="list"),
    "runs": Command(
        "workloads.runs.command",
        "list, verify, repair and tidy what runs have left in the runs bucket",
        "pyarrow",
        action="list",
    ),
    "status": Command("workloads.jobs.command", "what the stack's Ray has and what runs on it"),
    "idle": Command("workloads.idle.command", "whose GPUs are idle; with --end, stop or suspend them"),
}


PLACES = ("--stack", "--context", "--team", "--storage")
"""Options with a value that may stand before a command's action as well as after it."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What write(2) answers where standard output is a file on a disk that takes nothing more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. A failure is printed as what was wrong and what to do."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except WorkloadError as error:
        return _explain(error)
    except EnvironmentContractError as error:
        return _explain(PlaceError(str(error), ""))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __package__:
            raise
        return _explain(_missing(error.name))
    except OSError as error:
        if error.errno not in _FULL or _takes_output():
            raise
        return _explain(PlaceError(f"the output cannot be written: {error.strerror}.", "Write it to another place."))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def explain(arguments: list[str], place: Place, as_json: bool) -> int:
    """Print what a command that `explains` itself would use in a place, as with `--dry-run` there.

    Args:
        arguments: the command and its own.
        place: where it would run.
        as_json: one JSON object.
    """
    options, function = _parsed(arguments, "explain")
    options.json |= as_json
    return function(options, dataclasses.replace(place, address=options.address or place.address))


def check(arguments: list[str]) -> None:
    """Refuse, as the command itself would, arguments that are wrong in any place; where its library is not, its job
    will.

    Args:
        arguments: the command and its own.
    """
    command = COMMANDS[arguments[0]]
    if find_spec(command.needs) is not None:
        options, function = _parsed(arguments, "check" if command.explains else "run")
        if command.explains:
            function(options)


def _run(arguments: list[str]) -> int:
    options, run = _parsed(arguments, "run")
    return run(options)


def _takes_output() -> bool:
    """Whether standard output takes another line; if not, what is still in Python's buffers is dropped."""
    try:
        print(flush=True)
        return True
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def _parsed(arguments: list[str], verb: str) -> tuple[argparse.Namespace, Callable[..., Any]]:
    command = next((word for word in arguments if not word.startswith("-")), "")
    parser, function = _parser(command, verb)
    if function and (action := COMMANDS[command].action):
        at = arguments.index(command) + 1
        arguments = [*arguments[:at], *_action_first(arguments[at:], action)]
    options = parser.parse_args(arguments)
    assert function is not None  # argparse has refused what is no command
    # Others have no --dry-run, and answer in JSON by itself.
    if verb != "explain" and getattr(options, "json", False) and not getattr(options, "dry_run", True):
        raise UsageError("--json was given without --dry-run; it sets the form of the dry run.", "Add --dry-run.")
    options.words = arguments[arguments.index(command) + 1 :]  # for `--dry-run`, which says what was typed
    return options, function


def _action_first(words: list[str], usual: str) -> list[str]:
    """The words after a command with its action before the options: the first word that is none, nor a place's name."""
    for at, word in enumerate(words):
        if not word.startswith("-") and not (at and words[at - 1] in PLACES):
            return [word, *words[:at], *words[at + 1 :]]
    return words if {"-h", "--help"} & set(words) else [usual, *words]


def _explain(error: WorkloadError) -> int:
    remedy = (isinstance(error, PlaceError) and emulated.lost()) or error.remedy
    print(f"error: {error.problem}\n{remedy}".rstrip(), file=sys.stderr)
    return error.exit_code


def _parser(chosen: str, verb: str = "run") -> tuple[argparse.ArgumentParser, Callable[..., Any] | None]:
    parser = CommandParser(
        prog="python -m workloads",
        description="Train and measure on a Ray cluster, or on this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    function = None
    for name, command in COMMANDS.items():
        child = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            if find_spec(command.needs) is None:
                raise _missing(command.needs)
            module = importlib.import_module(command.module)
            getattr(module, f"add_{name}_arguments")(child)
            function = getattr(module, f"{verb}_{name}")
    return parser, function


def _missing(library: str) -> PlaceError:
    if API_SERVER_VARIABLE in os.environ:
        return PlaceError(
            f"This place has no {library}: the stock Ray image runs only what needs Ray alone.",
            "Run `make image STACK=...`, `pulumi up` and `make restart STACK=...`, then submit again.",
        )
    return PlaceError(f"This Python has no {library}.", "Run `make packages`, and use .venv/bin/python.")


if __name__ == "__main__":
    interruption.install()
    sys.exit(closed_pipe.run(main))
