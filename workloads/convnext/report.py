"""What a training run leaves behind: a table, JSON lines and a plot, the same on disk and in the runs bucket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from workloads.convnext.location import RESULTS_REMEDY
from workloads.errors import PlaceError
from workloads.storage import Folder
from workloads.tracking import Record, merge, parse

JOURNAL = "journal"
"""Folder of a run's history: a segment per checkpoint, written before its COMMIT, named so that they sort by time."""

WANDB = "wandb"
"""Folder of the results with W&B's own files."""

READERS = 16
"""Segments read at a time: a week's are a thousand small objects, each of which costs its latency."""


@dataclass(frozen=True)
class Written:
    """What was published."""

    table: str
    """The training curve in numbers."""
    uri: str
    """Folder of the results in the runs bucket."""


class Segments:
    """A run's history on its way into the bucket: rank 0 collects it and closes a segment for each checkpoint.

    Rank 0 and not the head, which has the same records in its own journal: only rank 0 can write them before the COMMIT
    that they belong to, and the head may be reclaimed with what was reported and not yet kept.
    """

    def __init__(self, folder: Folder, attempt: int) -> None:
        """Begin an attempt's history.

        Args:
            folder: of the run.
            attempt: number that is larger for each later attempt, nanoseconds since 1970.
        """
        self._folder = folder.child(JOURNAL)
        self._attempt = attempt
        self._written = 0
        self._open: list[Record] = []
        self._closed: list[Record] = []
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        """Collect a record; called by the step loop, and never waits for the bucket."""
        self._open.append(record)

    def close(self) -> Callable[[], None]:
        """End the segment here.

        Returns:
            What writes it, for another thread to call before COMMIT. Should that fail, the next segment has the records
            too; where all are written already it does nothing.
        """
        closed, self._open = self._open, []
        with self._lock:
            self._closed += closed
        return self._write

    def _write(self) -> None:
        # The lock is not held while the bucket is written: `close` must not wait for it, nor an urgent save for a slow
        # one. Two at a time write two objects, and some records twice.
        with self._lock:
            records, number = list(self._closed), self._written
            self._written += bool(records)
        if not records:
            return
        name = f"{self._attempt:019d}-{number:06d}.jsonl"
        self._folder.write(name, "".join(json.dumps(record) + "\n" for record in records).encode())
        stored = set(map(id, records))
        with self._lock:
            self._closed = [record for record in self._closed if id(record) not in stored]


def history(folder: Folder) -> list[Record]:
    """The records of all attempts at a run, as one history."""
    segments = folder.child(JOURNAL)
    whole = [name for name in segments.names() if name.endswith(".jsonl")]
    with ThreadPoolExecutor(READERS) as pool:
        contents = list(pool.map(segments.read, whole))
    return merge(record for content in contents for record in parse(content.decode()))


def publish(folder: Folder, results: Path, summary: Record) -> Written:
    """Write table, plot, JSON lines and summary.

    Args:
        folder: of the run, with its history.
        results: local folder for the same files.
        summary: of the run.

    Raises:
        PlaceError: a place does not take them; what the bucket took is there.
    """
    # Not above: it loads matplotlib, for which every restarted worker would wait, and only the end of a run draws.
    from workloads import curve

    records = history(folder)
    table = curve.table(records)
    title = f"ConvNeXt {summary['model']} on {Path(summary['data']).name}: {summary['run']}"
    files = {
        "curve.png": curve.draw(records, title),
        "table.txt": f"{title}\n\n{table}\n".encode(),
        "metrics.jsonl": "".join(json.dumps(record, sort_keys=True) + "\n" for record in records).encode(),
        "summary.json": (json.dumps(summary, indent=1, sort_keys=True) + "\n").encode(),
    }
    kept = folder.child("results")
    # The bucket first: it outlives this machine, whose disk may be full.
    for name, content in files.items():
        kept.write(name, content)
    # Recorded offline, W&B's part is a file too, and the head that has it may be gone when somebody syncs it.
    for file in results.glob(f"{WANDB}/wandb/offline-run-*/*.wandb"):
        kept.child(WANDB, file.parent.name).write(file.name, file.read_bytes())
    try:
        results.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (results / name).write_bytes(content)
    except OSError as error:
        raise PlaceError(
            f"cannot write results to {results}: {error.strerror or error}; they are in {kept.uri}.", RESULTS_REMEDY
        ) from error
    return Written(table, kept.uri)
