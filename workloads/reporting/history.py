"""A run's records: a journal on this machine's disk, segments in the bucket, and all of them as one history.

Everything that shows or sends metrics reads these. Every worker imports this module, so it imports no service client.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workloads.reporting import progress
from workloads.storage.folders import Folder

JOURNAL = "journal"
"""Folder of a run's history: a segment per checkpoint, written before its COMMIT, named so that they sort by time."""

READERS = 16
"""Segments read at a time: a week's are a thousand small objects, each of which costs its latency."""

Record = dict[str, Any]


class Journal:
    """A file of JSON lines that one process appends to; while its disk refuses, the records wait in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[Record] = []
        self._refused = False

    def append(self, records: list[Record]) -> None:
        """Add the records, each in one line, in one write; with the next ones, should the disk not take them now."""
        waiting = [*self._waiting, *records]
        text = "".join(json.dumps(record, sort_keys=True) + "\n" for record in waiting)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as stream:
                # A write that failed may have left a part of a line.
                stream.write(f"\n{text}" if self._waiting else text)
        except OSError as error:
            if not self._refused:
                problem = f"the journal {self.path} was not written ({error.strerror or error}); training went on"
                waiting.insert(len(self._waiting), {"event": "note", "text": problem})
            self._refused = True
            self._waiting = waiting
        else:
            self._waiting = []


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
    return merge(record for records in starts(folder) for record in records)


def starts(folder: Folder) -> list[list[Record]]:
    """The records of each start of a run's workers, as far as they were kept, oldest first."""
    segments = folder.child(JOURNAL)
    whole = sorted(name for name in segments.names() if name.endswith(".jsonl"))
    with ThreadPoolExecutor(READERS) as pool:
        contents = list(pool.map(segments.read, whole))
    found: dict[str, list[Record]] = {}
    for name, content in zip(whole, contents, strict=True):
        found.setdefault(name.partition("-")[0], []).extend(parse(content.decode(errors="replace")))
    return list(found.values())


def parse(content: str) -> list[Record]:
    """The records of a journal; a line that a kill cut short or a disk damaged is left out."""
    return [record for line in content.splitlines() if (record := progress.parse(line)) is not None]


def merge(records: Iterable[Record]) -> list[Record]:
    """One history from the journals of all attempts, told in their order.

    An attempt begins with `resumed`: what an earlier one did after that step is done again, and counts as it is told
    the last time.
    """
    latest: dict[tuple[str, int], Record] = {}
    for record in records:
        if "step" not in record:
            continue
        if record["event"] == "resumed":
            latest = {place: kept for place, kept in latest.items() if kept["step"] <= record["step"]}
        latest[record["event"], record["step"]] = record
    return sorted(latest.values(), key=lambda record: (record["step"], _ORDER.get(record["event"], len(_ORDER))))


_ORDER = {event: place for place, event in enumerate(("step", "epoch", "checkpoint", "notice", "resumed"))}
"""In which order things happen at one step."""
