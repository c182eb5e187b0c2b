"""The places for a command's results: the runs bucket, and a folder on this machine.

It needs only the standard library, as `submit` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.errors import PlaceError

if TYPE_CHECKING:
    from workloads.storage.folders import Folder

RESULTS_REMEDY = "Name another folder with --results; if its disk is full, free some space."


def check_results(folder: Path) -> None:
    """Refuse at once a folder that results cannot be written to.

    Raises:
        PlaceError: it cannot be made, or does not take a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
    except OSError as error:
        raise PlaceError(f"cannot write results to {folder}: {error.strerror or error}.", RESULTS_REMEDY) from error


def keep(files: Mapping[str, bytes], bucket: Folder, results: Path) -> None:
    """Write every file into both places, by its name: the bucket first, which outlives this machine and its full disk.

    Args:
        files: by name.
        bucket: folder of the results in the runs bucket.
        results: folder on this machine, which is made.

    Raises:
        PlaceError: a place does not take them; what the bucket took is there.
    """
    for name, content in files.items():
        bucket.write(name, content)
    try:
        results.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (results / name).write_bytes(content)
    except OSError as error:
        raise PlaceError(
            f"cannot write results to {results}: {error.strerror or error}; they are in {bucket.uri}.", RESULTS_REMEDY
        ) from error
