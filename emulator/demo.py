"""`make demo`: deploy on the emulated cloud, train, benchmark, and show where everything is. The cloud stays up.

The workloads are called as a user calls them, by their command line; none of their code is imported.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator import lifecycle
from emulator.engine.commands import STACK
from emulator.kubernetes import control_plane
from emulator.machine import processes
from emulator.machine.belongings import content
from emulator.machine.processes import OWNER_VARIABLE
from emulator.machine.state import CHECKOUT, EmulatorError, State

Report = Callable[[str], None]

DATA_SET = "digits"
RUN, MEASUREMENT = "demo-train", "demo-bench"
TRAINING = ("train", "--recipe", "digits_laptop", "--data", DATA_SET, "--run", RUN)
BENCHMARK = ("bench", "--nodes", "2", "--sizes", "1K:16M:4", "--name", MEASUREMENT)

SUMMARY = f"{RUN}/summary.json"
RESULTS = (
    SUMMARY,
    *(f"{RUN}/{name}" for name in ("metrics.jsonl", "table.txt", "curve.png")),
    *(f"{MEASUREMENT}/all_reduce.{form}" for form in ("jsonl", "txt", "png")),
)
"""What a complete demo leaves among the results."""

LEAST_ACCURACY = 0.98
"""On the validation images; the recipe reaches 0.983 to 0.997 over five seeds, a model that learns nothing 0.1."""

STOP_SECONDS = 20.0
"""How long an interrupted command may take to stop its job. `State.interrupt_holder` waits longer than this."""


@dataclass(frozen=True)
class DemoCommand:
    """One command of the demo."""

    title: str
    command: tuple[str, ...]


def main(state: State, report: Report, provider: str = "") -> int:
    """Run the whole demo; returns the exit status of the first command that failed, else 0.

    Raises:
        EmulatorError: an emulator is already up in this checkout, or it cannot be started.
    """
    with state.lock("make demo"):
        if control_plane.is_running(state):
            raise EmulatorError(
                "a demo is up in this checkout already. `.venv/bin/python -m emulator status` shows where; "
                "`make down` ends it, "
                "and then `make demo` starts anew. A second clone has a demo of its own."
            )
        begun = time.monotonic()
        with lifecycle.started(state, report, provider) as running:
            result = lifecycle.up(state, running)
            forget(state, str(result.outputs["runs_uri"]), report)
            environment = {**lifecycle.environment(state), OWNER_VARIABLE: str(state.directory)}
            upload, *jobs = steps(str(result.outputs["data_uri"]), state.path("results"))
            for step in (upload, *jobs):
                report(f"\n== {step.title}\n$ {' '.join(step.command)}")
                # An upload needs no Ray, which takes as long to start.
                beside = functools.partial(lifecycle.start_ray, state, report) if step is upload else None
                if status := run(step.command, environment, beside):
                    report(
                        f"\n`{' '.join(step.command)}` ended with status {status}. "
                        "The platform stays up to be looked at; `make down` ends it."
                    )
                    return status
            check(state.path("results"))
            report(summary(state, result.outputs, result.seconds, sum(result.changes.values()), begun))
    return 0


def forget(state: State, runs_uri: str, report: Report) -> None:
    """Remove only an earlier demo's run and measurement, which must not be mistaken for this one's."""
    bucket, results = state.path("buckets", runs_uri.removeprefix("gs://")), state.path("results")
    for folder in (bucket / RUN, bucket / "bench" / MEASUREMENT, results / RUN, results / MEASUREMENT):
        if folder.exists():
            report(f"removing {folder.name} of an earlier demo ({content(folder)}) from {folder.parent.name}")
            shutil.rmtree(folder, ignore_errors=True)


def steps(data_uri: str, results: Path) -> list[DemoCommand]:
    """The commands that the demo runs on the deployed platform."""
    workloads = (sys.executable, "-m", "workloads")
    submit = (*workloads, "submit", "--stack", STACK, "--results", str(results), "--")
    return [
        DemoCommand(
            "handwritten digits, as an image folder, into the stack's data bucket",
            (*workloads, "digits", "--to", f"{data_uri}/{DATA_SET}"),
        ),
        DemoCommand("ConvNeXt on them: a job on the stack's Ray, two gloo workers on two nodes", (*submit, *TRAINING)),
        DemoCommand("all-reduce between the two nodes", (*submit, *BENCHMARK)),
    ]


def run(command: Sequence[str], environment: Mapping[str, str], beside: Callable[[], object] | None = None) -> int:
    """Run a command in a session of its own, and `beside` meanwhile; returns the command's exit status.

    Ctrl-C is passed on to the command, which gets a while to stop its job. So a terminal's Ctrl-C and the signal of
    `make down`, which reaches only this process, have the same effect.
    """
    child = subprocess.Popen(
        command, cwd=CHECKOUT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        if beside is not None:
            beside()
        return child.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=STOP_SECONDS)
        print("this demo is over: the next `make demo` trains anew, whatever its job said about going on", flush=True)
        raise
    finally:
        processes.end(processes.in_session(child.pid), grace_seconds=3.0)


def check(results: Path) -> None:
    """Raise EmulatorError unless every result is there and the model has learned."""
    if missing := [name for name in RESULTS if not (results / name).is_file()]:
        raise EmulatorError(
            f"every command of the demo succeeded, but {', '.join(missing)} did not arrive in {results}. "
            "The jobs' own words are above; the emulator's are in the logs beside that folder."
        )
    accuracy = float(json.loads((results / SUMMARY).read_text())["val/accuracy"])
    if accuracy < LEAST_ACCURACY:
        raise EmulatorError(
            f"the demo's training reached {accuracy:.1%} validation accuracy and should reach {LEAST_ACCURACY:.0%}: "
            f"something is wrong with the trainer or its data. {results / RUN / 'table.txt'} has every epoch."
        )


def summary(state: State, outputs: Mapping[str, object], seconds: float, resources: int, begun: float) -> str:
    """A list of where everything is."""
    results = state.path("results")
    files = [results / name for name in RESULTS]
    rows = [
        ("deployed", f"{resources} resources in {seconds:.1f} s"),
        ("the whole demo", f"took {time.monotonic() - begun:.0f} s, after the Python packages were installed"),
        *_price(outputs),
        ("Ray dashboard", f"{lifecycle.dashboard(outputs)}  (it asks for the stack's token: see below)"),
        ("Kubernetes API", f"https://{control_plane.endpoint(state)}"),
        ("data bucket", f"{outputs['data_uri']}  in {_shown(state.path('buckets', str(outputs['data_uri'])[5:]))}"),
        ("runs bucket", f"{outputs['runs_uri']}  in {_shown(state.path('buckets', str(outputs['runs_uri'])[5:]))}"),
        *(("result", _shown(file)) for file in files),
        ("logs", _shown(state.path("logs"))),
    ]
    namespace, name = outputs["ray_namespace"], outputs["ray_cluster_name"]
    commands = [
        ("this shell uses it", lifecycle.EVAL),
        ("then, for example", f"kubectl get rayclusters,pods -n {namespace}; pulumi stack output -s {STACK}"),
        (
            "the dashboard's token",
            f"kubectl get secret {name} -n {namespace} -o jsonpath='{{.data.auth_token}}' | base64 -d",
        ),
        ("another job", f".venv/bin/python -m workloads submit --stack {STACK} -- python3 -c 'print(2 + 2)'"),
        ("end it", "make down"),
    ]
    lines = [f"  {label:<22} {text}".rstrip() for label, text in (*rows, ("", ""), *commands)]
    return "\n".join(["", "== the platform is up", *lines])


def _price(outputs: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What this stack would cost on Google Cloud, if its prices are known."""
    rest, most = outputs["hourly_cost_usd"], outputs["max_hourly_cost_usd"]
    if rest and most:
        yield (
            "on Google it costs",
            f"{rest} USD an hour at rest, {most} with every pool full, at list price (docs/cost.md)",
        )


def _shown(path: Path) -> str:
    return str(path.relative_to(CHECKOUT)) if path.is_relative_to(CHECKOUT) else str(path)
