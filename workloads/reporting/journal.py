"""The journal of a run: JSON lines on this machine's disk, which all that shows or sends its metrics reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
