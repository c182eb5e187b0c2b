"""Where a run's data and storage are, and what can be said of them before anything is started. Imports no torch."""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyarrow import fs

from workloads import environment
from workloads.errors import UsageError
from workloads.storage import Folder, locate

SYNTHETIC = "synthetic"
"""The `--data` value for made-up images, which need no place."""

DOWNLOADS = 16
"""Objects fetched at a time: many small ones are bound by their latency."""

SPLITS = ("train", "val")

REMEDY = "Name another place with --data, or write the data first."


def data_folder(data: str) -> Path | None:
    """The folder on this node that a `--data` value means, copied from its bucket if need be; None for synthetic data.

    Raises:
        UsageError: a gs:// address with nothing behind it.
    """
    if data == SYNTHETIC:
        return None
    if data.startswith("gs://"):
        return _downloaded(data)
    return Path(environment.mount(environment.DATA_MOUNT)) / data


def check_data(data: str, here: bool) -> str:
    """Refuse a data place that no worker could use, as far as it can be seen from here, without reading any image.

    Args:
        data: the `--data` value.
        here: whether the workers run on this machine, so that a path means the same to them.

    Returns:
        What could not be checked, as a sentence; empty if all was.

    Raises:
        UsageError: there is nothing there, or no training or validation split.
        AuthError: the bucket may not be read.
        PlaceError: the bucket does not answer.
    """
    if data == SYNTHETIC:
        return ""
    if data.startswith("gs://"):
        _check_splits(locate(data))
        return ""
    mount = Path(environment.mount(environment.DATA_MOUNT))
    folder = mount / data
    if folder.is_dir():
        _check_splits(locate(folder))
        return ""
    if here or folder.exists() or (folder.is_relative_to(mount) and mount.is_dir()):
        raise UsageError(f"the data path {folder} {'is no folder' if folder.exists() else 'does not exist'}.", REMEDY)
    return f"{folder} cannot be seen from here; whether it is there, the workers will say"


def _check_splits(place: Folder) -> None:
    try:
        # Looked for by name: listing a bucket of a million images takes minutes.
        found = place.filesystem.get_file_info([f"{place.path}/{split}" for split in SPLITS])
    except OSError:
        place.names()  # fails alike, and says what to do
        raise
    if all(info.type == fs.FileType.NotFound for info in found) and not place.names():
        raise UsageError(f"there is nothing at {place.uri}.", REMEDY)
    missing = [split for split, info in zip(SPLITS, found, strict=True) if info.type == fs.FileType.NotFound]
    if missing:
        raise UsageError(
            f"{place.uri} holds no folder {' and no folder '.join(map(repr, missing))}.",
            "Lay it out as train/<class>/*.png and val/<class>/*.png (or .jpg), or as train/*.tar and val/*.tar.",
        )


def check_storage(folder: Folder) -> None:
    """Refuse at once a place that checkpoints cannot be written to: writes an object and removes it.

    Args:
        folder: of the run.

    Raises:
        AuthError: it may not be written.
        PlaceError: it cannot be: a full or read-only disk, a bucket that does not exist or answer.
    """
    probe = folder.child("write-test")
    probe.write("probe", b"")
    probe.remove()


def _downloaded(uri: str) -> Path:
    source = locate(uri)
    listing = source.files()
    if not listing:
        raise UsageError(f"there is nothing at {uri}.", REMEDY)
    scratch = Path(environment.mount(environment.SCRATCH_MOUNT))
    scratch = scratch if scratch.is_dir() else Path(tempfile.gettempdir())
    folder = scratch / "oasis-data" / hashlib.sha256("\n".join([uri, *listing]).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "complete"
    # The first worker of a node copies while the others wait for its lock; a killed one's lock is gone with it.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _download(source, listing, folder / "images")
            complete.touch()
    return folder / "images"


def _download(source: Folder, names: list[str], folder: Path) -> None:
    def fetch(name: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.read(name))

    with ThreadPoolExecutor(DOWNLOADS) as pool:
        for _ in pool.map(fetch, names):
            continue
