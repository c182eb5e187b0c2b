"""`python -m workloads doctor`: is this place, a laptop, a head or a GPU worker, fit for the workloads?

It needs only the standard library, so that it can tell what any image lacks. A check that does not apply says so
instead of passing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from workloads.doctor import access, cluster, hardware, software
from workloads.doctor.finding import Doubtful, Finding, NotHere, Subject
from workloads.environment import ClusterEnvironment, EnvironmentContractError, variable
from workloads.errors import EXIT_OK, AuthError, PlaceError, UsageError, WorkloadError, first_line
from workloads.jobs import forecast

CHECKS: dict[str, Callable[[Subject], str]] = {
    "python": software.python,
    "ray": software.ray,
    "torch": software.torch,
    "cuda": software.cuda,
    "compiler": software.compiler,
    "gpus": hardware.gpus,
    "gib": hardware.gib,
    "shared memory": hardware.shared_memory,
    "scratch": hardware.scratch,
    "authentication": access.authentication,
    "listeners": access.ray_listeners,
    "control plane": cluster.control_plane,
    "kubectl": cluster.kubectl,
    "stack": cluster.deployed_stack,
    "nodes for pods": cluster.nodes_for_pods,
    "runs bucket": access.runs_bucket,
    "data bucket": access.data_bucket,
    "wandb": access.wandb,
}
"""What is checked, in this order."""

_SIGNS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "not here": "-"}
_COLOURS = {"ok": "32", "warn": "33", "fail": "1;31", "not here": "2"}  # ECMA-48, Select Graphic Rendition


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object per check")
    parser.add_argument("--stack", metavar="NAME", help="also say whether this stack's GPU nodes are likely to come")


def run_doctor(args: argparse.Namespace) -> int:
    """Run all checks and print what they found.

    Returns:
        0 where none failed, 7 where only tokens, keys and permissions did, else 8.
    """
    place = this_place(os.environ)
    findings: list[Finding] = []
    for finding in itertools.chain(
        (examine(name, check, place) for name, check in CHECKS.items()), expected(args.stack) if args.stack else ()
    ):
        _show(finding, args.json)
        findings.append(finding)
    failed = [finding for finding in findings if finding.outcome == "fail"]
    if not failed:
        return EXIT_OK
    if not args.json:
        print(f"\n{len(failed)} of {len(findings)} checks failed", file=sys.stderr)
    return AuthError.exit_code if all(finding.authentication for finding in failed) else PlaceError.exit_code


def examine(name: str, check: Callable[[Subject], str], place: Subject) -> Finding:
    """The outcome of one check."""
    try:
        return Finding(check=name, outcome="ok", found=check(place))
    except NotHere as reason:
        return Finding(check=name, outcome="not here", found=str(reason))
    except WorkloadError as problem:
        return Finding(
            check=name,
            outcome="warn" if isinstance(problem, Doubtful) else "fail",
            found=problem.problem,
            remedy=problem.remedy,
            authentication=isinstance(problem, AuthError),
        )
    except EnvironmentContractError as error:  # the stack is that of another version of the program
        return Finding(check=name, outcome="fail", found=str(error))
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)  # else it is installed, and a library of its own does not load
        found = f"the package {error.name} is not installed" if absent else first_line(error)
        return Finding(check=name, outcome="fail", found=found, remedy=software.MAKE_IMAGE)


def expected(stack: str) -> Iterator[Finding]:
    """The forecast of a stack's nodes, a line each; only a stack file that is wrong, or is not there, fails."""
    try:
        for line in forecast.lines(stack):
            yield Finding(check="forecast", outcome="ok", found=line)
    except WorkloadError as problem:
        outcome = "fail" if isinstance(problem, UsageError) else "warn"
        yield Finding(check="forecast", outcome=outcome, found=problem.problem, remedy=problem.remedy)


def this_place(variables: Mapping[str, str]) -> Subject:
    """The place that these variables describe, on this machine.

    Raises:
        EnvironmentContractError: OASIS_ variables are set, and incomplete.
    """
    environment = ClusterEnvironment.from_env(variables) if variable("project") in variables else None
    return Subject(environment=environment, variables=dict(variables), gpus=hardware.visible_gpus())


def _show(finding: Finding, as_json: bool) -> None:
    print(json.dumps(asdict(finding), sort_keys=True) if as_json else _line(finding, sys.stdout.isatty()), flush=True)


def _line(finding: Finding, terminal: bool) -> str:
    sign = f"{_SIGNS[finding.outcome]:<6}"
    if terminal:
        sign = f"\x1b[{_COLOURS[finding.outcome]}m{sign}\x1b[0m"
    remedy = f"\n{'':<22}{finding.remedy}" if finding.remedy else ""
    return f"{sign}{finding.check:<16}{finding.found}{remedy}"
