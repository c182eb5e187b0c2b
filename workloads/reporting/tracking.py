"""Metrics: a journal of JSON lines first, and everything else (progress, Weights & Biases) by reading it.

Each reader follows the journal in its own thread, so that one that hangs delays neither training nor another reader.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from workloads.errors import PlaceError, WorkloadError, first_line
from workloads.reporting import credentials
from workloads.reporting.history import Record, parse
from workloads.reporting.wandb_process import Patience

WandbMode = Literal["auto", "online", "offline", "off"]

POLL_SECONDS = 0.2
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a slow reader, W&B above all, before leaving it behind."""

MEASURED = frozenset({"step", "epoch"})
"""Events with numbers for W&B."""

_TRACKED = frozenset({"epoch", "learning_rate"})
"""Values for W&B beside those with a slash in their name, `train/loss`."""


class JournalFollower:
    """Feeds a journal's records to one reader, in a thread of its own."""

    def __init__(self, path: Path, read: Callable[[Record], None], finish: Callable[[], None], name: str) -> None:
        """Start following.

        Args:
            path: the journal; it may not exist yet.
            read: called for each record, in order.
            finish: called once, after the last record.
            name: of the reader, for the message when it fails or hangs.
        """
        self._path, self._read, self._finish, self._name = path, read, finish, name
        self._closing = threading.Event()
        self._offset = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=f"follow-{name}", daemon=True)
        self._thread.start()

    def close(self, seconds: float = CLOSE_SECONDS) -> str:
        """Let the reader finish, for at most that long.

        Returns:
            What went wrong with it, in a sentence; empty if nothing did.
        """
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return f"{self._name} did not finish within {seconds:.0f} s; the metrics are in {self._path}."
        return self.problem

    def _run(self) -> None:
        try:
            while not self._closing.wait(POLL_SECONDS):
                self._drain()
            self._drain()
            self._finish()
        except Exception as error:  # a reader's failure, of whatever kind, must never become the run's
            first = first_line(error)
            self.problem = f"{self._name} failed ({first}); the metrics are in {self._path}."

    def _drain(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            whole, newline, _ = stream.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for record in parse(whole.decode()):
            self._read(record)


class Wandb:
    """One W&B run, the same over all restarts, in a process of its own that its first record starts."""

    def __init__(
        self,
        run: str,
        config: Record,
        folder: Path,
        key: credentials.Key | None,
        say: Callable[[str], None],
        history: Callable[[], list[Record]] = list,
        patience: Patience | None = None,
    ) -> None:
        """Say what to track; nothing is contacted yet.

        Args:
            run: name and id of the W&B run.
            config: hyper-parameters to show.
            folder: for W&B's own files; on a local disk, since it appends all the time.
            key: None writes offline.
            say: told what became of it.
            history: gives the run's earlier records, of which a killed driver may not have sent all.
            patience: how long W&B is waited for.
        """
        self._job = {"run": run, "config": config, "folder": str(folder), **asdict(patience or Patience())}
        self._folder, self._key, self._say, self._history = folder, key, say, history
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    def read(self, record: Record) -> None:
        """Log one record's numbers at its step."""
        if record["event"] not in MEASURED:
            return
        if self._process is None:
            self._process = self._start()
            for earlier in self._told_before():
                _write(self._process, _measured(earlier))
        _write(self._process, _measured(record))

    def finish(self) -> None:
        """Send what is left and close.

        Raises:
            RuntimeError: the process failed; its own words have been said.
        """
        if self._process is None or self._process.stdin is None or self._listener is None:
            return
        with suppress(BrokenPipeError):  # its exit code says more
            self._process.stdin.close()
        code = self._process.wait()
        # W&B's own service may outlive the process a little, and holds the other end of what is listened to.
        self._listener.join(1)
        if code:
            raise RuntimeError(f"its process ended with {code}, see {self._folder / 'process.log'}")

    def _told_before(self) -> list[Record]:
        try:
            return [record for record in self._history() if record["event"] in MEASURED]
        except (WorkloadError, OSError) as error:
            self._say(f"W&B may lack steps from before this start: {error}")
            return []

    def _start(self) -> subprocess.Popen[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "process.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "workloads.reporting.wandb_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C is meant for the driver; it ends this process by closing its input.
                process_group=0,
                env={**os.environ, **_child_variables()},
            )
        self._listener = threading.Thread(target=self._listen, args=(process,), name="wandb-says", daemon=True)
        self._listener.start()
        _write(process, {**self._job, "key": self._key.value if self._key else ""})
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for sentence in process.stdout or ():
            self._say(f"W&B {sentence.strip()}")


def _child_variables() -> dict[str, str]:
    # The process must find this package whatever the working directory is, as in a job's worker.
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "WANDB_ERROR_REPORTING": "false"}


def _write(process: subprocess.Popen[str], message: Record) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended, of which `finish` tells
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()


def _measured(record: Record) -> Record:
    values = {name: value for name, value in record.items() if "/" in name or name in _TRACKED}
    return {"event": record["event"], "step": record["step"], "values": values}


def wandb_reader(
    mode: WandbMode,
    run: str,
    config: Record,
    folder: Path,
    key_file: Path | None,
    secret: str,
    say: Callable[[str], None],
    history: Callable[[], list[Record]] = list,
) -> Wandb | None:
    """The W&B reader that the mode and the keys at hand allow, or None for none.

    Args:
        mode: `auto` is online where there is a key and off where there is none; `online` demands a key.
        run: name of the run.
        config: hyper-parameters to show.
        folder: for W&B's own files.
        key_file: file with the key, if the user named one.
        secret: Secret Manager resource with the key; empty for none.
        say: told what was decided, and later what became of it.
        history: gives the run's earlier records.

    Raises:
        AuthError: `online` was demanded, or a file named, and no key can be read.
        PlaceError: W&B was demanded so, and its package is not installed.
    """
    if mode == "off":
        return None
    try:
        key = _key(mode, key_file, secret)
    except WorkloadError as error:
        if _demanded(mode, key_file):
            raise
        say(f"W&B is off: {error}")
        return None
    if key is None and mode == "auto":
        say("W&B is off: there is no key in a file, the environment or Secret Manager.")
        return None
    say(f"W&B is used with the key from {key.source}." if key else f"W&B is offline, in {folder}.")
    return Wandb(run, config, folder, key, say, history)


def check_key(mode: WandbMode, key_file: Path | None, secret: str) -> None:
    """Raise what `wandb_reader` would raise of its mode and key, before anything has begun."""
    if mode != "off" and _demanded(mode, key_file):
        _key(mode, key_file, secret)


def _demanded(mode: WandbMode, key_file: Path | None) -> bool:
    return mode != "auto" or key_file is not None


def _key(mode: WandbMode, key_file: Path | None, secret: str) -> credentials.Key | None:
    if find_spec("wandb") is None:
        raise PlaceError("the package wandb is not installed.", "Install it, or use --wandb off.")
    if mode == "offline":
        return None
    key = credentials.wandb_key(key_file, secret)
    if key is None and mode == "online":
        raise credentials.no_key()
    return key
