"""Where results of a benchmark are read from: a file, a folder of them, or the same in the runs bucket."""

from __future__ import annotations

from workloads.errors import UsageError
from workloads.nccl.results import records
from workloads.nccl.results.records import Results
from workloads.storage.folders import locate

SUFFIX = ".jsonl"


def load(place: str) -> list[Results]:
    """Every file of results that a place holds, in the order of their names.

    Args:
        place: a `.jsonl` file or a folder, on a disk or gs://; folders inside it are looked into, too.

    Raises:
        UsageError: there is no such place, or no results in it.
        DataIntegrityError: a file of results is cut off or damaged.
    """
    if place.endswith(SUFFIX):
        above, _, name = place.rpartition("/")
        try:
            return [records.read(locate(above or ("/" if place.startswith("/") else ".")).read(name), place)]
        except FileNotFoundError:
            raise UsageError(f"There is no file {place}.", "Name a file or a folder that `bench` wrote.") from None
    folder = locate(place)
    names = [name for name in folder.files() if name.endswith(SUFFIX)]
    found = [
        records.read(content, f"{place.rstrip('/')}/{name}")
        for name in names
        if records.is_results(content := folder.read(name))
    ]
    if not found:
        raise UsageError(
            f"{place} holds no results of `bench`: no .jsonl file with schema {records.FAMILY}* is in it.",
            "Name the folder of a benchmark, or one of its .jsonl files.",
        )
    return found
