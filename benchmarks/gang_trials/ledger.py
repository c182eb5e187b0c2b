"""The ledger of queued trainings compared with the lifetimes of the nodes bought for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict

from benchmarks.gang_trials.stage import REQUEST_LABEL, Event, Stage
from benchmarks.harness import figures
from benchmarks.harness.figures import say, spread, today
from benchmarks.harness.trials import until
from emulator import lifecycle
from emulator.machine.state import CHECKOUT
from workloads.environment import NODE_HOUR_VARIABLE
from workloads.reporting.cost import HOUR, Stay, stays
from workloads.storage.folders import locate

SETTINGS = {"oasis:gpu": {"capacity": [{"mode": "queued", "max_nodes": 1}]}}

WATCHED = ("nodes",)

EPOCHS = (20, 80)
"""Epochs of the shortest and the longest training: all end within minutes."""

MOST_SECONDS = 1200.0
"""Longest wait for a node's removal after its training has ended."""

NODE_HOUR_USD = 40.0
"""Price given to the trainings."""


def measure(stage: Stage, count: int, seed: int) -> tuple[figures.Record, list[str]]:
    """(seconds of nodes, by their lifetimes and by the ledger; each training whose ledger is not within its node's)"""
    before, after, counted, lived, wrong = list[float](), list[float](), list[float](), list[float](), list[str]()
    for number in range(count):
        epochs = EPOCHS[0] + (EPOCHS[1] - EPOCHS[0]) * number // max(1, count - 1)
        run = f"ledger-{number}"
        _train(stage, run, epochs, seed)
        until(lambda: not stage.queued_nodes(), MOST_SECONDS, f"the node of {run} went", every=1.0)
        [stay] = stays(locate(_runs(stage)).child(run))
        born, gone = _lives(stage.record.events())[number]
        wrong += [f"{run}: {problem}" for problem in judged(stay, born, gone)]
        before.append(stay.began - born)
        after.append(gone - stay.ended)
        counted.append(stay.node_hours * HOUR)
        lived.append(gone - born)
        say(f"{number + 1} of {count} trainings: a node lived {lived[-1]:.0f} s, the ledger has {counted[-1]:.0f} s")
    return {
        "date": today(),
        "trainings": count,
        "seconds of a node's life": spread(lived),
        "seconds in the ledger": spread(counted),
        "seconds from the node to the workers' start": spread(before),
        "seconds from the workers' end to the node's": spread(after),
        "not within their node's life": len(wrong),
    }, wrong


def judged(stay: Stay, born: float, gone: float) -> list[str]:
    """Where a ledger's entry contradicts the lifetime of its node."""
    found: list[str] = []
    if not born <= stay.began <= stay.ended <= gone:
        found.append(f"the ledger has {stay.began:.0f} to {stay.ended:.0f}, its node lived {born:.0f} to {gone:.0f}")
    if stay.nodes != 1:
        found.append(f"the ledger has {stay.nodes} nodes, there was one")
    if stay.usd != stay.node_hours * NODE_HOUR_USD:
        found.append(f"the ledger has {stay.usd} USD for {stay.node_hours} node hours")
    return found


def _train(stage: Stage, run: str, epochs: int, seed: int) -> None:
    training = ["train", "--recipe", "digits_laptop", "--data", "synthetic", "--run", run, "--workers", "1"]
    training += ["--epochs", str(epochs), "--seed", str(seed), "--wandb", "off"]
    priced = ["--env", f"{NODE_HOUR_VARIABLE}={NODE_HOUR_USD}"]
    command = [sys.executable, "-m", "workloads", "submit", "--queue", "--nodes", "1", *priced, "--", *training]
    environment = {**os.environ, **lifecycle.environment(stage.state)}
    subprocess.run(command, env=environment, cwd=CHECKOUT, check=True)


def _runs(stage: Stage) -> str:
    [mount] = stage.state.path("buckets").glob("*runs*")
    return str(mount)


def _lives(events: list[Event]) -> list[tuple[float, float]]:
    """When each node of the queue came and went, in Unix time, in the order in which they came."""
    offset, seen = time.time() - time.monotonic(), defaultdict[str, list[float]](list)
    for event in events:
        if REQUEST_LABEL in event.body["metadata"].get("labels", {}) and event.type in ("ADDED", "DELETED"):
            seen[event.body["metadata"]["uid"]].append(event.seconds + offset)
    return [(born, gone) for born, gone in seen.values()]
