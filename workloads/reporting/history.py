"""A run's history in the bucket: a segment of records for each checkpoint, and all of them as one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from workloads.reporting.tracking import Record, merge, parse
from workloads.storage.folders import Folder

JOURNAL = "journal"
"""Folder of a run's history: a segment per checkpoint, written before its COMMIT, named so that they sort by time."""

READERS = 16
"""Segments read at a time: a week's are a thousand small objects, each of which costs its latency."""


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
