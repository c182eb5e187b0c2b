"""A trial as Ray Tune sees it: an actor without resources that keeps one `train` process and tells what it reports.

A process and not a thread, for what Ray does at its end: a placement group that a killed actor made stays until its
*job* ends, and Ray Train's own cleaner asks the dashboard, which an embedded Ray lacks. As threads of one job, stopped
trials would leave CPUs reserved that the next ones wait for without end. A process of its own is a job of its own.
"""

from __future__ import annotations

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

from ray import tune

from workloads import progress
from workloads.tune.ledger import measured

BEAT_SECONDS = 1.0
"""Longest time between two results: only between them does Ray Tune see that a trial is to stop."""

STOP_SECONDS = 60.0
"""How long a trial may take to end at SIGINT before it is killed; Ray Train's workers take a few seconds."""

LOG_BYTES = 4096
"""What is read of the end of a failed trial's log."""


class TrainProcess(tune.Trainable):
    """One trial. Every result has `at`, the epoch it is in; one at an epoch's end has that epoch's record as well.

    The last has `done` and the process's `exit_code`, `problem` and `seconds`.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start the process.

        Args:
            config: `arguments` of the command line; `pid` of the search, whose environment is each trial's, so that no
                key passes through Ray; `directory` to work in; `log`, the file for the trial's messages.
        """
        self._log = Path(config["log"])
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._at = 0.0
        self._began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workloads.tune.child", str(os.getpid()), *config["arguments"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=config["directory"],
                env={**os.environ, **environment(config["pid"]), progress.FORM_VARIABLE: "json"},
            )
        assert self._process.stdout is not None
        reader = threading.Thread(target=_read, args=(self._process.stdout, self._records.put), daemon=True)
        reader.start()

    def step(self) -> dict[str, Any]:
        """The next epoch's record, or after a beat where the trial is."""
        deadline = time.monotonic() + BEAT_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                record = self._records.get(timeout=left)
            except queue.Empty:
                break
            if record is None:
                return self._end()
            if record["event"] in ("step", "epoch"):
                self._at = float(record["epoch"])
            if record["event"] == "epoch":
                return {"at": self._at, **measured(record)}
        return {"at": self._at}

    def cleanup(self) -> None:
        """End the process, if it has not ended: as Ctrl-C does, then by force."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _end(self) -> dict[str, Any]:
        exit_code = self._process.wait()
        if exit_code < 0:
            # Not a verdict but an accident: Ray Tune starts the trial again, and it goes on from its checkpoint.
            raise RuntimeError(f"{signal.Signals(-exit_code).name} ended the trial's process")
        problem = failure(self._log) if exit_code else ""
        seconds = time.monotonic() - self._began
        return {"done": True, "at": self._at, "exit_code": exit_code, "problem": problem, "seconds": seconds}


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def failure(log: Path) -> str:
    """What the command line said last: the error it explained, or the last line of a traceback."""
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
