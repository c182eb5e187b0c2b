"""Brings a job's results from the runs bucket to this machine. Without access to the bucket, says where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workloads.errors import WorkloadError
from workloads.reporting import progress

DEFAULT = Path(".oasis/results")


def add_results_argument(group: Any) -> None:
    """The argument that says where results go."""
    group.add_argument(
        "--results", type=Path, default=DEFAULT, metavar="DIR", help="where the job's results are copied (%(default)s)"
    )


def fetch(uri: str, directory: Path) -> None:
    """Copy the files that a job left.

    Args:
        uri: folder in the bucket that the job named; nothing happens if it named none.
        directory: they are put into a folder of the run's name below it.
    """
    if not uri.startswith("gs://"):
        return
    try:
        from workloads.storage.folders import locate

        folder = locate(uri)
        target = directory / _run_name(uri)
        for name in folder.files():
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(folder.read(name))
        progress.note(f"results are in {target}, copied from {uri}")
    except (WorkloadError, ImportError, OSError) as error:
        progress.note(f"results are in {uri}; they were not copied here: {error}")


def _run_name(uri: str) -> str:
    """The run's name: the last part of the address, or the one before it where results have a folder of their own."""
    parts = uri.rstrip("/").split("/")
    return parts[-2] if parts[-1] == "results" else parts[-1]
