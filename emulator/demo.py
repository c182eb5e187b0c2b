"""`make demo`: deploy on the emulated cloud, train, benchmark, and show where everything is. It stays up afterwards.

The workloads are called as a user calls them, by their command line; nothing of theirs is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator import control_plane, lifecycle, processes
from emulator.engine import STACK
from emulator.state import CHECKOUT, EmulatorError, State

Report = Callable[[str], None]

DATA_SET = "digits"
TRAINING = ("train", "--recipe", "digits_laptop", "--data", DATA_SET, "--run", "demo-train")
BENCHMARK = ("bench", "--nodes", "2", "--sizes", "1K:16M:4", "--name", "demo-bench")


@dataclass(frozen=True)
class Step:
    """One command of the demo."""

    title: str
    command: tuple[str, ...]


def main(state: State, report: Report) -> int:
    """Run the whole demo; returns the exit status of the first command that failed, else 0.

    Raises:
        EmulatorError: one is up in this checkout already, or the emulator cannot be started.
    """
    with state.lock("make demo"):
        if control_plane.is_running(state):
            raise EmulatorError(
                "a demo is up in this checkout already. `python -m emulator status` shows where; `make down` ends it, "
                "and then `make demo` starts anew. A second clone has a demo of its own."
            )
        begun = time.monotonic()
        with lifecycle.started(state, report) as running:
            result = lifecycle.deploy(state, running, report)
            environment = lifecycle.environment(state)
            for step in steps(str(result.outputs["data_uri"]), state.path("results")):
                report(f"\n== {step.title}\n$ {' '.join(step.command)}")
                if status := run(step.command, environment):
                    report(
                        f"\n`{' '.join(step.command)}` ended with status {status}. "
                        "The platform stays up to be looked at; `make down` ends it."
                    )
                    return status
            report(summary(state, result.outputs, result.seconds, sum(result.changes.values()), begun))
    return 0


def steps(data_uri: str, results: Path) -> list[Step]:
    """What the demo runs on the deployed platform."""
    workloads = (sys.executable, "-m", "workloads")
    submit = (*workloads, "submit", "--stack", STACK, "--results", str(results), "--")
    return [
        Step(
            "handwritten digits, as an image folder, into the stack's data bucket",
            (*workloads, "digits", "--to", f"{data_uri}/{DATA_SET}"),
        ),
        Step("ConvNeXt on them: a job on the stack's Ray, two gloo workers on two nodes", (*submit, *TRAINING)),
        Step("all-reduce between the two nodes", (*submit, *BENCHMARK)),
    ]


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command at this terminal. Ctrl-C reaches it as well; it gets a while to stop its job."""
    child = subprocess.Popen(command, cwd=CHECKOUT, env={**os.environ, **environment})
    try:
        return child.wait()
    except KeyboardInterrupt:
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            processes.end([child.pid], grace_seconds=3.0)
        raise


def summary(state: State, outputs: Mapping[str, object], seconds: float, resources: int, begun: float) -> str:
    """Where everything is."""
    results = state.path("results")
    runs = (results / "demo-train", results / "demo-bench")
    files = sorted(file for run in runs for file in run.rglob("*") if file.is_file())
    rows = [
        ("deployed", f"{resources} resources in {seconds:.1f} s; the whole demo took {time.monotonic() - begun:.0f} s"),
        ("Ray dashboard", f"{outputs['ray_dashboard_url']}  (it asks for the stack's token: see below)"),
        ("Kubernetes API", f"https://{control_plane.endpoint(state)}"),
        ("data bucket", f"{outputs['data_uri']}  in {_shown(state.path('buckets', str(outputs['data_uri'])[5:]))}"),
        ("runs bucket", f"{outputs['runs_uri']}  in {_shown(state.path('buckets', str(outputs['runs_uri'])[5:]))}"),
        *(("result", _shown(file)) for file in files),
        ("logs", _shown(state.path("logs"))),
    ]
    namespace, name = outputs["ray_namespace"], outputs["ray_cluster_name"]
    commands = [
        ("this shell uses it", 'eval "$(.venv/bin/python -m emulator env)"'),
        ("then, for example", f"kubectl get rayclusters,pods -n {namespace}; pulumi stack output -s {STACK}"),
        (
            "the dashboard's token",
            f"kubectl get secret {name} -n {namespace} -o jsonpath='{{.data.auth_token}}' | base64 -d",
        ),
        ("another job", f".venv/bin/python -m workloads submit --stack {STACK} -- python3 -c 'print(2 + 2)'"),
        ("end it", "make down"),
    ]
    lines = [f"  {label:<22} {text}" for label, text in (*rows, ("", ""), *commands)]
    return "\n".join(["", "== the platform is up", *lines])


def _shown(path: Path) -> str:
    return str(path.relative_to(CHECKOUT)) if path.is_relative_to(CHECKOUT) else str(path)
