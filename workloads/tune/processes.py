"""The processes in which a search's trials train: each is kept from trial to trial, and ends with the search.

In processes and not in threads, for what Ray does at a trial's end: a placement group stays until its *job* ends, and
Ray Train's own cleaner asks the dashboard, which an embedded Ray lacks. As threads of one job, stopped trials would
leave CPUs reserved that the next ones wait for without end. A process of its own is a job of its own, and gives up what
each of its trials has left; see `child`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads.reporting import progress

LOG_BYTES = 4096
"""How many bytes are read from the end of a failed trial's log."""

Tell = Callable[["Process", "dict[str, Any] | None"], None]
"""Told each record of the trial that a process runs; None at the process's end."""


class Process:
    """One process, `child`, which runs one trial at a time."""

    def __init__(self, address: str, log: Path, tell: Tell) -> None:
        """Start it.

        Args:
            address: of the Ray that all trials use.
            log: file for what it says before its first trial.
            tell: called by a thread of this process's own.
        """
        with log.open("ab") as messages:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workloads.tune.child", str(os.getpid()), address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                errors="replace",  # a library's own line, in whatever encoding, is none of ours
                # This process's own lacks the W&B key, which nothing of Ray's may inherit.
                env={**environment(os.getpid()), **os.environ, progress.FORM_VARIABLE: "json"},
                start_new_session=True,  # a terminal's Ctrl-C is for the search, which passes it on once
            )
        threading.Thread(target=self._read, args=(tell,), daemon=True).start()

    def _read(self, tell: Tell) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            record = progress.parse(line)
            if record is not None:
                tell(self, record)
        tell(self, None)

    def begin(self, arguments: list[str], log: Path) -> None:
        """Have a trial trained; no other is.

        Args:
            arguments: of the command line.
            log: file for the trial's messages; those of earlier attempts at it may stand there.
        """
        self._log, self._before = log, log.stat().st_size if log.exists() else 0
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"arguments": arguments, "log": str(log)}) + "\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """End the trial as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def leave(self) -> None:
        """End the process, and with it what it has of Ray's."""
        self._process.kill()
        self._process.wait()

    def ended(self) -> str:
        """What ended it, in words."""
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def failure(self) -> str:
        """The trial's last words: the error that its command line explained, or the last line of a traceback."""
        try:
            with self._log.open("rb") as stream:
                stream.seek(max(self._before, self._log.stat().st_size - LOG_BYTES))
                text = stream.read().decode(errors="replace").strip()
        except OSError as error:
            return f"its log {self._log} cannot be read: {error.strerror}"
        explained = re.findall(r"^error: (.+)", text, re.MULTILINE)
        return (explained or text.splitlines() or ["it printed nothing"])[-1]


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
