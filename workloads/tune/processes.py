"""The processes in which a search's trials train: an actor beside the search that keeps them from trial to trial.

A trial's own actor ends with the trial, and its process would with it. As many are kept as ran at once.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workloads.cluster.capacity import WAITING
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK
from workloads.reporting import progress
from workloads.tune.child import ENDED
from workloads.tune.ledger import measured

NAME = "trial-processes"
"""Of the actor, in the search's own namespace."""

BEAT_SECONDS = 1.0
"""Longest time between two results: only between them does Ray Tune see that a trial is to stop."""

STOP_SECONDS = 60.0
"""How long a trial may take to end at SIGINT before it is killed; Ray Train's workers take a few seconds."""

LOG_BYTES = 4096
"""How many bytes are read from the end of a failed trial's log."""

MOST_CALLS = 1000
"""Trials that may ask at a time."""


def start(limit: int) -> Any:
    """Start the actor on this node, for so many trials at a time.

    Returns:
        The handle; the actor ends with the last one, and the processes with it.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # Nothing is imported for it: a fork server would be its own, as its environment is not that of Ray Tune's actors.
    actor = ray.remote(num_cpus=0, runtime_env={"py_executable": sys.executable})(Processes)
    return actor.options(name=NAME, max_concurrency=MOST_CALLS, scheduling_strategy=here).remote(limit)


class Processes:
    """The processes by the trial that each runs, and the idle ones."""

    def __init__(self, limit: int) -> None:
        self._places = threading.Semaphore(limit)
        self._placed: set[str] = set()
        self._running: dict[str, _Process] = {}
        self._idle: list[_Process] = []

    def begin(self, config: dict[str, Any]) -> None:
        """Start a trial, in an idle process if there is one; `config` as of `TrainProcess`."""
        self.end(config["trial"])  # of an actor that Ray Tune has replaced
        # Ray Tune starts a trial while the one before it still ends. Of an actor that died nobody is told.
        if self._places.acquire(timeout=STOP_SECONDS):
            self._placed.add(config["trial"])
        self._idle = [process for process in self._idle if process.runs]
        process = self._idle.pop() if self._idle else _Process(config)
        self._running[config["trial"]] = process
        process.begin(config)

    def next(self, trial: str) -> dict[str, Any]:
        """A trial's next result; as `TrainProcess` tells it."""
        result = self._running[trial].next()
        if "done" in result:
            self.end(trial)
        return result

    def end(self, trial: str) -> None:
        """End a trial, if it has not ended. A process that failed is not kept: nobody knows what of it still holds."""
        process = self._running.pop(trial, None)
        if process is None:
            return
        if process.stop() in (EXIT_OK, EXIT_INTERRUPTED):
            self._idle.append(process)
        else:
            process.leave()
        if trial in self._placed:
            self._placed.remove(trial)
            self._places.release()


class _Process:
    """One process, `child`, and the trial that it runs."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with Path(config["log"]).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workloads.tune.child", str(os.getpid()), config["address"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=config["directory"],
                env={**os.environ, **environment(config["pid"]), progress.FORM_VARIABLE: "json"},
            )
        threading.Thread(target=_read, args=(self._process.stdout, self._records.put), daemon=True).start()
        self._log, self._at, self._waits, self._began = Path(), 0.0, "", 0.0
        self._exit_code: int | None = None

    @property
    def runs(self) -> bool:
        """True if it has not ended, of itself or by somebody's signal."""
        return self._process.poll() is None

    def begin(self, config: dict[str, Any]) -> None:
        """Have a trial trained; no other is."""
        self._log, self._at, self._waits, self._began = Path(config["log"]), 0.0, "", time.monotonic()
        self._exit_code = None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"arguments": config["arguments"], "log": config["log"]}) + "\n")
        self._process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """The next epoch's record, or after a beat where the trial is."""
        deadline = time.monotonic() + BEAT_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                record = self._records.get(timeout=left)
            except queue.Empty:
                break
            if record is None:
                code = self._process.wait()
                # Not a verdict but an accident: Ray Tune starts the trial again, and it goes on from its checkpoint.
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                raise RuntimeError(f"{how} ended the trial's process")
            if record["event"] == ENDED:
                return self._ended(record["exit_code"])
            if record["event"] == "note":
                text, _, _ = record["text"].partition(";")
                self._waits = text if text.startswith(WAITING) else ""
            if record["event"] in ("step", "epoch"):
                self._at = float(record["epoch"])
            if record["event"] == "epoch":
                return {"at": self._at, **measured(record)}
        return {"at": self._at, "waits": self._waits}

    def stop(self) -> int:
        """End the trial, if it has not ended, as Ctrl-C does; its exit code, or one below 0 where the process ended."""
        if self._exit_code is not None:
            return self._exit_code
        if not self.runs:
            return -1
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                record = self._records.get(timeout=left)
            except queue.Empty:
                break
            if record is None or record["event"] == ENDED:
                return -1 if record is None else record["exit_code"]
        return -1

    def leave(self) -> None:
        """End the process, and with it what it has of Ray's."""
        self._process.kill()
        self._process.wait()

    def _ended(self, exit_code: int) -> dict[str, Any]:
        self._exit_code = exit_code
        problem = failure(self._log) if exit_code else ""
        seconds = time.monotonic() - self._began
        return {"done": True, "at": self._at, "exit_code": exit_code, "problem": problem, "seconds": seconds}


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def failure(log: Path) -> str:
    """The command line's last words: the error it explained, or the last line of a traceback."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - LOG_BYTES))
        text = stream.read().decode(errors="replace").strip()
    _, found, explained = text.rpartition("error: ")
    lines = explained.splitlines() if found else text.splitlines()[-1:]
    return (lines or ["it said nothing"])[0]


def _read(stream: TextIO, put: Callable[[dict[str, Any] | None], None]) -> None:
    for line in stream:
        record = progress.parse(line)
        if record is not None:
            put(record)
    put(None)
