"""Figures: medians with their spread, what they were measured on, and the file that keeps them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads.errors import PlaceError

Record = dict[str, Any]


def median_and_range(values: Sequence[float], digits: int = 2) -> Record:
    """Median, least and most; empty if there are no values."""
    if not values:
        return {}
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in found.items()}


def spread(values: Sequence[float]) -> Record:
    """Median, least, most and how many there are; empty if there are no values."""
    return {**median_and_range(values), "runs": len(values)} if values else {}


def quartiles(values: Sequence[float], digits: int = 2) -> list[float]:
    """The three quartiles; a single value unchanged."""
    found = statistics.quantiles(values, n=4) if len(values) > 1 else values
    return [round(value, digits) for value in found]


def today() -> str:
    """The date, in the form that figures use."""
    return datetime.date.today().isoformat()


def conditions() -> Record:
    """Date and machine of a measurement."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {"cores": os.cpu_count(), "memory_gib": memory >> 30, "python": platform.python_version()}
    return {"date": today(), "machine": machine}


def read(file: Path) -> Record:
    """The figures of a file; nothing if there is no file."""
    return json.loads(file.read_text()) if file.exists() else {}


def write(file: Path, found: Record) -> None:
    """Replace a file of figures atomically.

    Raises:
        PlaceError: it cannot be written there.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(found, indent=2) + "\n")
        partial.replace(file)
    except OSError as error:
        raise PlaceError(f"{file} cannot be written: {error.strerror}.", "Name another with --results.") from error


def say(line: str) -> None:
    """Report progress on standard error."""
    print(line, file=sys.stderr, flush=True)
