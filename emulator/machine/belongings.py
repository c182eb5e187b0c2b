"""The size of a checkout's folder, and its number of runs. Needs only the standard library, as `make clean` does."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_PARTS = {"checkpoints", "journal", "results"}
"""A run is any folder that contains one of these (workloads/runs/catalog.py)."""


@dataclass(frozen=True)
class TreeSize:
    """Size of a file or folder; a link counts as itself, not as what it leads to."""

    size: int
    """Bytes of all files."""
    runs: int

    def __str__(self) -> str:
        """`1.2 GB`, or `34.1 MB, 2 runs`."""
        return ", ".join([size_text(self.size), *([runs_text(self.runs)] if self.runs else [])])


def content(path: Path) -> TreeSize:
    """Measure a file or folder as a whole."""
    size = runs = 0
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(FileNotFoundError):  # running processes may delete files meanwhile
            size = path.lstat().st_size
        return TreeSize(size, 0)
    for name, folders, files in os.walk(path):
        folder = Path(name)
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                size += (folder / file).lstat().st_size
        # A folder of runs is not a run itself, and a run's own folders hold no runs.
        within = _PARTS.isdisjoint(folder.relative_to(path).parts)
        runs += folder != path and within and not _PARTS.isdisjoint(folders)
    return TreeSize(size, runs)


def runs_text(count: int) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} run{'' if count == 1 else 's'}"


def size_text(size: float) -> str:
    """Bytes for people: `34.1 MB`."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
