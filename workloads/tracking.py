"""Metrics: a journal of JSON lines first, and everything else (progress, Weights & Biases) by reading it.

Each reader follows the journal in its own thread, so that one that hangs delays neither training nor another reader.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from workloads import credentials
from workloads.errors import WorkloadError

WandbMode = Literal["auto", "online", "offline", "off"]

POLL_SECONDS = 0.2
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a slow reader, W&B above all, before leaving it behind."""

Record = dict[str, Any]


class Journal:
    """A file of JSON lines that one process appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, records: list[Record]) -> None:
        """Add the records, each in one line, in one write."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write("".join(json.dumps(record, sort_keys=True) + "\n" for record in records))


def parse(content: str) -> list[Record]:
    """The records of a journal; a last line that a kill cut short is left out."""
    records = []
    for line in content.splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def merge(records: list[Record]) -> list[Record]:
    """One history from the journals of all attempts; where a kill repeated a step, the last telling counts."""
    latest = {(record["event"], record["step"]): record for record in records if "step" in record}
    return sorted(latest.values(), key=lambda record: (record["step"], record["event"] == "epoch"))


class Follower:
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
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
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
    """One W&B run, the same over all restarts; started by its first record, in its follower's thread."""

    def __init__(self, run: str, config: Record, folder: Path, key: credentials.Key | None) -> None:
        """Say what to track; nothing is contacted yet.

        Args:
            run: name and, made safe, id of the W&B run.
            config: hyper-parameters to show.
            folder: for W&B's own files; on a local disk, since it appends all the time.
            key: None writes offline.
        """
        self._run_name, self._config, self._folder, self._key = run, config, folder, key
        self._run: Any = None

    def read(self, record: Record) -> None:
        """Log one record's numbers at its step."""
        if "step" not in record:
            return
        if self._run is None:
            self._run = self._start()
        values = {name: value for name, value in record.items() if "/" in name or name in {"epoch", "learning_rate"}}
        self._run.log(values, step=record["step"])

    def finish(self) -> None:
        """Send what is left and close."""
        if self._run is not None:
            self._run.finish()

    def _start(self) -> Any:
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            api_key=self._key.value if self._key else None,
            mode="online" if self._key else "offline",
            init_timeout=CLOSE_SECONDS,
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
        )
        return wandb.init(
            project="oasis",
            id=self._run_name,
            name=self._run_name,
            resume="allow",
            config=self._config,
            dir=str(self._folder),
            settings=settings,
        )


def wandb_reader(
    mode: WandbMode,
    run: str,
    config: Record,
    folder: Path,
    key_file: Path | None,
    secret: str,
    say: Callable[[str], None],
) -> Wandb | None:
    """The W&B reader that the mode and the keys at hand allow, or None for none.

    Args:
        mode: `auto` is online where there is a key and off where there is none; `online` demands a key.
        run: name of the run.
        config: hyper-parameters to show.
        folder: for W&B's own files.
        key_file: file with the key, if the user named one.
        secret: Secret Manager resource with the key; empty for none.
        say: told what was decided.

    Raises:
        AuthError: `online` was demanded and no key can be read.
    """
    if mode == "off":
        return None
    key: credentials.Key | None = None
    if mode != "offline":
        try:
            key = credentials.wandb_key(key_file, secret)
        except WorkloadError as error:
            if mode == "online":
                raise
            say(f"W&B is off: {error}")
            return None
        if key is None and mode == "online":
            raise credentials.no_key()
    if key is None and mode == "auto":
        say("W&B is off: there is no key in a file, the environment or Secret Manager.")
        return None
    say(f"W&B is online, with the key from {key.source}." if key else f"W&B is offline, in {folder}.")
    return Wandb(run, config, folder, key)
