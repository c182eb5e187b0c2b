"""Trials of a measurement that takes hours, stored one by one as they end, so that an interrupted one can resume."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.figures import Record, say, today

Trial = tuple[str, int]
"""A part of the measurement, and the number of the trial in it."""


class Trials:
    """The trials in one file of JSON lines, each with its part, its number in it and its date."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def parse(self, parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The arguments, including `--fresh`, which deletes the kept trials."""
        parser.add_argument("--fresh", action="store_true", help="forget the trials kept from earlier")
        given = parser.parse_args(arguments)
        if given.fresh:
            self._file.unlink(missing_ok=True)
        return given

    def keep(self, part: str, number: int, record: Mapping[str, object]) -> None:
        """Add one trial to the kept ones, and show it."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"date": today(), "part": part, "number": number, **record})
        with self._file.open("a") as stream:
            stream.write(line + "\n")
        say(line)

    def kept(self) -> list[Record]:
        """The trials of this and earlier invocations."""
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def missing(self, counts: Mapping[str, int]) -> list[Trial]:
        """Trials that have not run yet, in the order of `counts`, which gives the number of trials per part."""
        done = {(record["part"], record["number"]) for record in self.kept()}
        wanted = ((part, number) for part, count in counts.items() for number in range(count))
        return [trial for trial in wanted if trial not in done]

    def summary(
        self, parts: Mapping[str, Callable[[Sequence[Record]], Record]], right: Callable[[Record], bool]
    ) -> Record:
        """The figures of each part that has trials, their dates, and `wrong`: every trial that is not right."""
        records = self.kept()
        found = {part: [record for record in records if record["part"] == part] for part in parts}
        wrong = [record for part in parts for record in found[part] if not right(record)]
        return {
            **{part: parts[part](mine) for part, mine in found.items() if mine},
            "dates": sorted({record["date"] for record in records}),
            "wrong": [{"part": record["part"], "number": record["number"]} for record in wrong],
        }


def chance_of(trial: Trial) -> random.Random:
    """The random generator of a trial, the same whenever and after whatever it runs."""
    part, number = trial
    return random.Random(f"{part}/{number}")


def until(
    condition: Callable[[], object], seconds: float = 90, what: str = "the run went on", every: float = 0.02
) -> None:
    """Wait for a condition, checking it `every` so many seconds.

    Raises:
        TimeoutError: it did not come true; names `what`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)
