"""kill -9 at a random instant of a process that saves repeatedly, and then: does the newest checkpoint load?

Our store and two common ways to save use the same harness: writers are forked from one server that has imported
everything, so a trial is little more than its saves.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from workloads.checkpoints import state as checkpoint_state
from workloads.checkpoints.store import CheckpointStore
from workloads.errors import DataIntegrityError
from workloads.storage.folders import locate

IDENTITY = {"model": "kills"}
TENSORS, TENSOR_BYTES = 8, 3 << 20
"""A state of 25 MB, the size behind the figures of the facts, in several shards."""

LONGEST_DELAY = 0.3
"""Longest time from the first save to the kill, in seconds: some five saves."""

PATIENCE = 120.0
"""Seconds for a writer's first save; a slower one is a failure of the harness, not a finding."""

KEEP = 2

Save = Callable[[Path, int], None]
Load = Callable[[Path], dict[str, Any]]


def state(step: int) -> dict[str, Any]:
    """A state in which every number is its step."""
    return {"step": step, "weights": [torch.full((TENSOR_BYTES // 4,), float(step)) for _ in range(TENSORS)]}


def save_ours(folder: Path, step: int) -> None:
    """One save with the workloads' store, in shards small enough that there are several."""
    checkpoint_state.SHARD_BYTES = 2 * TENSOR_BYTES
    CheckpointStore(locate(folder), KEEP).save(state(step), step, IDENTITY, {})


def load_ours(folder: Path) -> dict[str, Any]:
    """Load the newest checkpoint; a committed one that had to be skipped counts as unloadable."""
    passed_over: list[str] = []
    found = CheckpointStore(locate(folder), KEEP).newest(IDENTITY, passed_over.append)
    if found is None or passed_over:
        raise DataIntegrityError("; ".join(passed_over) or "there is none", "")
    return found.state


def save_over(folder: Path, step: int) -> None:
    """The usual line: torch.save over the same file."""
    torch.save(state(step), folder / "latest.pt")


def load_over(folder: Path) -> dict[str, Any]:
    """The usual line to read it."""
    return torch.load(folder / "latest.pt", weights_only=True)


def save_unmarked(folder: Path, step: int) -> None:
    """A folder of shards per step, without a mark that all shards are there."""
    target = folder / f"step-{step:09d}"
    target.mkdir()
    for number, tensor in enumerate(state(step)["weights"]):
        torch.save({"step": step, "weights": [tensor]}, target / f"shard-{number}.pt")
    for older in sorted(folder.iterdir())[:-KEEP]:
        shutil.rmtree(older)


def load_unmarked(folder: Path) -> dict[str, Any]:
    """Load all shards of the newest folder."""
    newest = max(folder.iterdir())
    shards = [torch.load(newest / f"shard-{number}.pt", weights_only=True) for number in range(TENSORS)]
    return {"step": shards[0]["step"], "weights": [shard["weights"][0] for shard in shards]}


VARIANTS: dict[str, tuple[Save, Load]] = {
    "ours": (save_ours, load_ours),
    "torch.save over one file": (save_over, load_over),
    "folder of shards without a marker": (save_unmarked, load_unmarked),
}


def run(variant: str, trials: int, folder: Path, lanes: int, seed: int) -> Iterator[Counter[str]]:
    """Kill so many writers.

    Args:
        variant: one of VARIANTS.
        trials: number of kills.
        folder: folder for the checkpoints, on the disk under test.
        lanes: concurrent writers, each with its own run.
        seed: seed of the instants.

    Yields:
        The outcome of each kill: `trials` 1, and 1 of `unloadable` (the newest does not load), `wrong` (it loads
        and is not what was saved), `lost` (it is older than one whose save had returned), as they apply; `orphans`
        counts folders without COMMIT that the kill left, `uncollected` those that a restart did not remove.
    """
    context = multiprocessing.get_context("forkserver")
    # Includes what the command imports: each writer runs it as its main module.
    context.set_forkserver_preload([__name__, "torchvision.models", "tests.emulator.google"])
    chance = random.Random(seed)
    # To leave it, also by Ctrl-C, is to wait until the writers are killed: their folder is removed next.
    with ThreadPoolExecutor(lanes) as pool:
        for begun in range(0, trials, lanes):
            turns = [
                (context, variant, folder / f"lane-{lane}", begun, chance.uniform(0, LONGEST_DELAY))
                for lane in range(min(lanes, trials - begun))
            ]
            yield from list(pool.map(lambda turn: trial(*turn), turns))


def trial(context: Any, variant: str, folder: Path, begun: int, delay: float) -> Counter[str]:
    """One kill, `delay` seconds after the writer's first save; see `run`. Steps grow with `begun`."""
    folder.mkdir(parents=True, exist_ok=True)
    ours, theirs = context.Pipe(duplex=False)
    writer = context.Process(target=_save_for_ever, args=(variant, folder, 1 + begun * 1000, theirs))
    writer.start()
    theirs.close()
    if not ours.poll(PATIENCE):
        writer.kill()
        raise TimeoutError(f"no save within {PATIENCE:.0f} s")
    time.sleep(delay)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    found = _look(variant, folder, acknowledged=_last(ours))
    if variant == "ours":
        found.update(_collect(folder))  # which, unlike a sum, keeps the counts that are 0
    elif found["unloadable"]:
        shutil.rmtree(folder)
    return found


def _save_for_ever(variant: str, folder: Path, first: int, acknowledge: Connection) -> None:
    torch.set_num_threads(1)
    for step in range(first, 1_000_000_000):
        VARIANTS[variant][0](folder, step)
        acknowledge.send(step)


def _last(connection: Connection) -> int:
    """The last step that a dead writer reported."""
    step = 0
    try:
        while True:
            step = connection.recv()
    except (EOFError, OSError):
        return step


def _look(variant: str, folder: Path, acknowledged: int) -> Counter[str]:
    try:
        state = VARIANTS[variant][1](folder)
    except (DataIntegrityError, RuntimeError, OSError, EOFError, pickle.UnpicklingError, ValueError):
        return Counter(trials=1, unloadable=1, wrong=0, lost=0)
    step = state["step"]
    wrong = not all(bool((part == step).all()) for part in state["weights"])
    return Counter(trials=1, unloadable=0, wrong=int(wrong), lost=int(step < acknowledged))


def _collect(folder: Path) -> Counter[str]:
    store = CheckpointStore(locate(folder), KEEP)
    orphans = len({entry.name for entry in folder.iterdir()} - set(store.committed()))
    store.collect()
    left = {entry.name for entry in folder.iterdir()} - set(store.committed())
    return Counter(orphans=orphans, uncollected=len(left))
