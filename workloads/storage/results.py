"""The folder on this machine that a command's results go to. It needs the standard library alone, as `submit` does."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workloads.errors import PlaceError

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
