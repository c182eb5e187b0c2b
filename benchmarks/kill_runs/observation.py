"""Observations of killed runs: the workers' own records, the moment of the kill, and what is stored afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.harness.trials import until
from tests.support.processes import command
from workloads.checkpoints import manifest
from workloads.checkpoints.store import CheckpointStore
from workloads.convnext.run.run import Run


class RunObservation:
    """Everything that the workers of one run recorded about themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[Path, tuple[int, list[dict[str, Any]]]] = {}

    def lines(self) -> list[dict[str, Any]]:
        """All steps of all ranks in all attempts, ordered by time; a line cut short by a kill is left out."""
        for file in self.folder.glob("*.jsonl"):
            offset, known = self._lines.get(file, (0, []))
            with file.open("rb") as stream:
                stream.seek(offset)
                whole, newline, _ = stream.read().rpartition(b"\n")
            known += [json.loads(line) for line in whole.splitlines()]
            self._lines[file] = (offset + len(whole) + len(newline), known)
        return sorted((line for _, known in self._lines.values() for line in known), key=lambda line: line["time"])

    def attempts(self) -> list[int]:
        """The attempts that reached a step, oldest first."""
        return sorted({line["attempt"] for line in self.lines()})

    def pids(self, attempt: int) -> dict[int, int]:
        """Process of each rank."""
        return {line["rank"]: line["pid"] for line in self.lines() if line["attempt"] == attempt}

    def first(self, attempt: int) -> dict[str, Any]:
        """The first step of an attempt, as recorded by the last rank to do it."""
        mine = [line for line in self.lines() if line["attempt"] == attempt]
        step = min(line["step"] for line in mine)
        return max((line for line in mine if line["step"] == step), key=lambda line: line["time"])

    def kept(self) -> list[dict[str, Any]]:
        """The steps that are part of the run's history: those of each attempt that later ones did not redo."""
        kept: list[dict[str, Any]] = []
        for attempt in self.attempts():
            mine = [line for line in self.lines() if line["attempt"] == attempt]
            first = min(line["step"] for line in mine)
            kept = [line for line in kept if line["step"] < first] + mine
        return kept

    def exactness(self, epochs: int, images: int) -> dict[str, int]:
        """Images missing and repeated over all epochs, in the history that led to the final weights."""
        missing = repeated = 0
        for epoch in range(epochs):
            counts = Counter(number for line in self.kept() if line["epoch"] == epoch for number in line["seen"])
            missing += images - len(counts)
            repeated += counts.total() - len(counts)
        return {"missing": missing, "repeated": repeated}


@contextlib.contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    """Do something while the block runs. Raises its failure, or TimeoutError if the block ends before it is done."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # raised again in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    yield
    thread.join(timeout=5)
    if failures:
        raise failures[0]
    if thread.is_alive():
        raise TimeoutError("the run ended before all its kills")


def kill(pid: int) -> None:
    """SIGKILL one of Ray's processes, but no other that may have got its pid."""
    if not command(pid).startswith("ray::"):
        raise TimeoutError("the run ended before all its kills")
    os.kill(pid, signal.SIGKILL)


def kill_worker(seen: RunObservation, wait: float, chance: random.Random) -> dict[str, float]:
    """SIGKILL a random rank `wait` seconds after its attempt's first step; wait for the next attempt's first step.

    Returns:
        `recovered` seconds from the kill to the first new step; `redone` steps, the one in flight included;
        `redone_seconds` from the restored state to the kill; `longest_step` seconds.
    """
    before = len(seen.attempts())
    attempt = seen.attempts()[-1]
    time.sleep(wait)
    pids = seen.pids(attempt)
    killed = time.time()
    kill(pids[chance.choice(sorted(pids))])
    until(lambda: len(seen.attempts()) > before)
    first = seen.first(seen.attempts()[-1])
    mine = [line for line in seen.lines() if line["attempt"] == attempt and line["rank"] == 0]
    done = [line for line in mine if line["time"] <= killed]
    resumed = first["step"] - 1
    # If this attempt committed nothing, the run went back to the attempt's own first state.
    times = [line["time"] for line in done]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    longest = max([*gaps, killed - times[-1]])
    since = next((line["time"] for line in done if line["step"] == resumed), times[0] - longest)
    return {
        "recovered": first["time"] - killed,
        "redone": done[-1]["step"] - resumed + 1,
        "redone_seconds": killed - since,
        "longest_step": longest,
    }


def final_state(run: Run) -> str:
    """Hash of every tensor in the newest checkpoint."""
    store = CheckpointStore(run.folder.child("checkpoints"), 3)
    names = store.committed()
    found = manifest.read(run.folder.child("checkpoints", names[-1]))
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(value.contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for inner in value:
                add(inner)
        else:
            digest.update(repr(value).encode())

    add(store.load(names[-1], found["identity"]).state)
    return digest.hexdigest()


def orphans(run: Run) -> int:
    """Checkpoint folders without COMMIT, and committed ones beyond those to keep."""
    folder = run.folder.child("checkpoints")
    whole = manifest.committed(folder.files())
    return len(set(folder.names()) - set(whole)) + max(0, len(whole) - run.config.keep_checkpoints)
