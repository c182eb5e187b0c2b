"""`python -m workloads submit`: runs any command as a job on a stack's Ray, shows it, and returns its exit code.

Drivers run on the head, by its custom resource `driver`: asking for CPUs, of which the head has none, would add a node
for them, a GPU node even. A command of this package takes the package along, so that what runs is what is here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from workloads import progress, results, stack
from workloads.dashboard import reach
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError, WorkloadError
from workloads.follow import STOP_SECONDS, Follower, Jobs, exit_code, refused

OWN_COMMANDS = ("train", "bench", "digits", "doctor")
"""Commands of this package that run in a job as they do here."""

DRIVER_RESOURCES = {"driver": 0.01}
"""What a job's entry point asks for: a hundredth of what the head has one of per slot."""

EXCLUDES = [".git/", ".venv/", ".oasis/", "__pycache__/", ".pytest_cache/", ".ruff_cache/", "node_modules/", "*.pyc"]
"""Never part of an uploaded working directory, besides what its .gitignore names."""

_JOB_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "RAY_JOB_STOP_SIGNAL": "SIGINT",  # Ray's default is SIGTERM, and SIGKILL 3 s later: no time to put things in order
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
}


def add_submit_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads submit`."""
    parser.usage = "python -m workloads submit [options] -- COMMAND ..."
    stack.add_stack_arguments(parser)
    job = parser.add_argument_group("job")
    job.add_argument("--working-dir", type=Path, metavar="DIR", help="uploaded, and where the command starts")
    job.add_argument("--runtime-env", type=Path, metavar="FILE", help="Ray runtime environment, YAML")
    job.add_argument(
        "--entrypoint-resources",
        metavar="JSON",
        default=json.dumps(DRIVER_RESOURCES),
        help="what the command itself takes (%(default)s: a place on the head)",
    )
    job.add_argument("--detach", action="store_true", help="return as soon as the job is submitted")
    results.add_results_argument(job)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help=f"what to run: any program, or {', '.join(OWN_COMMANDS)} of this package",
    )


def run_submit(args: argparse.Namespace) -> int:
    """Submit, follow, and return the driver's exit code."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("There is no command to submit.", "Write it after `--`: submit -- python3 hello_world.py")
    resources = _resources(args.entrypoint_resources)
    with _runtime_env(args, command) as runtime_env, reach(stack.find(args)) as dashboard:
        jobs = Jobs(dashboard)
        submission_id = f"{_label(command)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        try:
            jobs.client().submit_job(
                entrypoint=_entrypoint(command),
                submission_id=submission_id,
                runtime_env=runtime_env,
                entrypoint_resources=resources,
                metadata={"oasis.command": _label(command)},
            )
        except RuntimeError as error:
            raise refused(error) from error
        except ValueError as error:  # the runtime environment does not fit Ray's schema
            raise UsageError(
                f"Ray does not accept the runtime environment: {error}", "Correct --runtime-env."
            ) from error
        again = f"python -m workloads jobs attach {submission_id}{stack.flags(args)}"
        if args.detach:
            print(submission_id)
            print(f"follow it with `{again}`", file=sys.stderr)
            return EXIT_OK
        progress.note(f"job {submission_id} submitted; Ctrl-C stops it")
        follower = Follower(jobs, submission_id)
        try:
            details = follower.run()
        except KeyboardInterrupt:
            return _stop(jobs, follower, again)
        except WorkloadError:
            print(f"job {submission_id} was left running; follow it with `{again}`", file=sys.stderr)
            raise
        results.fetch(follower.results_uri, args.results)
        return exit_code(details)


def _stop(jobs: Jobs, follower: Follower, again: str) -> int:
    print(f"stopping job {follower.submission_id}; Ctrl-C again leaves it to itself", file=sys.stderr)
    try:
        jobs.stop(follower.submission_id)
        if not follower.run().status.is_terminal():
            print(f"it has not stopped within {STOP_SECONDS:.0f} s; look at it with `{again}`", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"left while it was stopping; follow it with `{again}`", file=sys.stderr)
    return EXIT_INTERRUPTED


def _resources(text: str) -> dict[str, float]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(
        isinstance(amount, int | float) and not isinstance(amount, bool) and amount >= 0 for amount in given.values()
    ):
        raise UsageError(
            f"--entrypoint-resources is {text!r}.", f"Write amounts by name, as in '{json.dumps(DRIVER_RESOURCES)}'."
        )
    return given


@contextlib.contextmanager
def _runtime_env(args: argparse.Namespace, command: list[str]) -> Iterator[dict[str, Any]]:
    """The job's runtime environment; a staged copy of this package lives as long as the block."""
    given = _read_runtime_env(args.runtime_env)
    own = command[0] in OWN_COMMANDS
    variables = {**_JOB_ENVIRONMENT, **({progress.FORM_VARIABLE: "json"} if own else {})}
    environment = {**given, "env_vars": {**variables, **(given.get("env_vars") or {})}}
    if args.working_dir is not None:
        if not args.working_dir.is_dir():
            raise UsageError(f"--working-dir {args.working_dir} is no folder.", "Name the folder to upload.")
        environment["working_dir"] = str(args.working_dir.resolve())
    if "working_dir" in environment or not own:
        environment["excludes"] = [*EXCLUDES, *(given.get("excludes") or [])]
        yield environment
        return
    with tempfile.TemporaryDirectory(prefix="oasis-submit-") as staging:
        package = Path(__file__).resolve().parent
        ignored = shutil.ignore_patterns("__pycache__", "image")
        shutil.copytree(package, Path(staging) / package.name, ignore=ignored)
        yield {**environment, "working_dir": staging}


def _read_runtime_env(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        given = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"--runtime-env {path} cannot be read: {error}", "Name a YAML file.") from error
    if not isinstance(given, dict):
        raise UsageError(f"--runtime-env {path} holds no mapping.", "Write `env_vars:`, `working_dir:` and the like.")
    return given


def _entrypoint(command: list[str]) -> str:
    return shlex.join(["python", "-m", "workloads", *command] if command[0] in OWN_COMMANDS else command)


def _label(command: list[str]) -> str:
    """The command's first word, as it may stand in a job's id."""
    word = Path(command[0]).name.lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in word).strip("-")[:30] or "job"
