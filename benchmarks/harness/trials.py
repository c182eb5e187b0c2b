"""Trials of a measurement that takes hours, kept one by one as they end, so that an interrupted one goes on."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Trials:
    """The trials in one file of JSON lines, each with its part, its number in it and its date."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def forget(self) -> None:
        """Begin anew."""
        self._file.unlink(missing_ok=True)

    def keep(self, part: str, number: int, record: Mapping[str, Any]) -> None:
        """Add one trial to those that are kept, and show it."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"date": datetime.date.today().isoformat(), "part": part, "number": number, **record})
        with self._file.open("a") as stream:
            stream.write(line + "\n")
        print(line, file=sys.stderr, flush=True)

    def kept(self) -> list[Record]:
        """The trials of this and earlier invocations."""
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def missing(self, counts: Mapping[str, int]) -> list[tuple[str, int]]:
        """Part and number of what was not run yet, in the order of `counts`.

        Args:
            counts: how many trials each part is to have.
        """
        done = {(record["part"], record["number"]) for record in self.kept()}
        wanted = ((part, number) for part, count in counts.items() for number in range(count))
        return [trial for trial in wanted if trial not in done]
