"""The location of a run's data and storage, and checks of them before anything starts. Imports no torch."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from pyarrow import fs

from workloads import environment
from workloads.errors import DataIntegrityError, PlaceError, UsageError
from workloads.reporting.progress import counted
from workloads.storage.disk import PARTIAL, Entry
from workloads.storage.folders import Folder, locate

SYNTHETIC = "synthetic"
"""The `--data` value for made-up images, which need no place."""

DIGITS = "digits"
"""The `--data` name of what every place has, for `workloads.convnext.images.digits` writes it without a download."""

DIGITS_IMAGES = 1437
"""How many of the digits are to be learnt from."""

DOWNLOADS = 16
"""Objects fetched at a time: many small ones are bound by their latency."""

SPLITS = ("train", "val")

REMEDY = "Name another place with --data, or write the data first."

_fetched: dict[str, Path] = {}
"""In a worker: what was copied before the ranks met. To list a bucket of a million images again takes minutes."""


def data_folder(data: str) -> Path | None:
    """The folder on this node that a `--data` value means, copied from its bucket if need be; None for synthetic data.

    Raises:
        UsageError: a gs:// address with nothing behind it.
        DataIntegrityError: an image was deleted or written again while it was copied.
        AuthError: the bucket may not be read.
        PlaceError: the bucket does not answer, or the copy does not fit this node's scratch disk.
    """
    if data == SYNTHETIC:
        return None
    if data.startswith("gs://"):
        return _downloaded(data)
    return Path(environment.mount(environment.DATA_MOUNT)) / data


def fetch(data: str) -> Path | None:
    """Do what `data_folder` does, and keep what it says for `fetched`; raises as it does."""
    folder = data_folder(data)
    if folder is not None:
        _fetched[data] = folder
    return folder


def fetched(data: str) -> Path | None:
    """The answer of `data_folder`, at once where `fetch` came before; raises as it does."""
    return _fetched.pop(data, None) or data_folder(data)


def provide_digits(say: Callable[[str], None]) -> None:
    """Write the digits, for workers on this machine, where its data mount has none; that folder becomes the mount.

    Raises:
        PlaceError: the disk does not take them.
    """
    mount = digits_mount()
    if mount is None:
        return
    missing = Path(environment.mount(environment.DATA_MOUNT)) / DIGITS
    say(f"there is no {missing}: training on the handwritten digits that scikit-learn has, in {mount / DIGITS}")
    from workloads.convnext.images import digits

    digits.write(str(mount / DIGITS), lambda _: None)
    os.environ[environment.variable("data_mount")] = str(mount)


def digits_mount() -> Path | None:
    """The folder that `provide_digits` makes the data mount; None where the mount has the digits already."""
    with suppress(OSError):  # a folder that this user may not look into has no digits to train on
        if (Path(environment.mount(environment.DATA_MOUNT)) / DIGITS).exists():
            return None
    return Path(".oasis/data").absolute()


def check_data(data: str, here: bool) -> str:
    """Refuse a data place that no worker could use, as far as it can be seen from here, without reading any image.

    Args:
        data: the `--data` value.
        here: whether the workers run on this machine, so that a path means the same to them.

    Returns:
        What could not be checked, or will take long, as a sentence; empty if neither is so.

    Raises:
        UsageError: there is nothing there, or no training or validation split.
        AuthError: it may not be read.
        PlaceError: the bucket or the mount does not answer.
    """
    if data == SYNTHETIC:
        return ""
    if data.startswith("gs://"):
        _check_splits(locate(data))
        return ""
    mount = Path(environment.mount(environment.DATA_MOUNT))
    folder = mount / data
    if locate(folder).exists():
        _check_splits(locate(folder))
        return _unindexed(folder)
    if here or folder.exists() or (folder.is_relative_to(mount) and mount.is_dir()):
        beside = f"For the folder here give --data {Path(data).absolute()}." if Path(data).is_dir() else REMEDY
        name = "" if Path(data).is_absolute() else f"{data!r} was looked for below the data mount {mount}: "
        what = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"{name}the data path {folder} {what}.", beside)
    return f"{folder} cannot be seen from here; the workers will say whether it exists"


def _unindexed(folder: Path) -> str:
    """A warning that each start will take long, for shards that cannot be indexed in place; empty for others."""
    from workloads.convnext.images.shards import index_path, shard_files

    # By name: to ask a mounted bucket for each index would cost a round trip.
    there: set[Path] = set()
    bare: list[Path] = []
    with suppress(OSError):  # the workers will say so
        for split in SPLITS:
            there.update((folder / split).iterdir())
            bare += [shard for shard in shard_files(folder / split) if index_path(shard) not in there]
    if not bare or os.access(folder / SPLITS[0], os.W_OK):
        return ""
    return (
        f"{counted(len(bare), 'shard')} of {folder} without an index: each worker reads them in full at every start; "
        "`python -m workloads shards --index`, run where they can be written, avoids that"
    )


def check_batch(data: str, batch_size: int, here: bool) -> None:
    """Refuse a batch larger than the training split, where that can be seen from here; no more than a batch is counted.

    Args:
        data: the `--data` value.
        batch_size: images of a batch.
        here: as of `check_data`.

    Raises:
        UsageError: there are fewer images.
        DataIntegrityError: a shard's index is damaged, or another shard's.
    """
    if data == SYNTHETIC or "://" in data:
        return
    provided = here and data == DIGITS and digits_mount() is not None
    split = Path(environment.mount(environment.DATA_MOUNT)) / data / SPLITS[0]
    count = 0
    with suppress(OSError):  # the workers read all of it, and explain what they cannot
        for images in [DIGITS_IMAGES] if provided else _images_of_parts(split):
            count += images
            if count >= batch_size:
                return
        if count:
            refuse_batch(data, batch_size, count)


def refuse_batch(data: str, batch_size: int, images: int) -> NoReturn:
    """Say that a batch is larger than the training split, as `UsageError`."""
    raise UsageError(
        f"batch_size is {batch_size}, but {data} has {images} training images.",
        f"Choose --batch-size {images} or less.",
    )


def _images_of_parts(split: Path) -> Iterator[int]:
    """How many images each class folder or indexed shard has; a shard without an index takes long to read."""
    from workloads.convnext.images.folder import class_folders, image_files
    from workloads.convnext.images.shards import index_path, shard_files, shard_index

    shards = shard_files(split)
    if all(index_path(shard).exists() for shard in shards):
        yield from (len(shard_index(shard).offsets) for shard in shards)
        yield from (len(image_files(split / name)) for name in class_folders(split))


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


def _downloaded(uri: str) -> Path:
    source = locate(uri)
    listing = sorted((entry for entry in source.entries() if entry.is_file), key=lambda entry: entry.path)
    if not listing:
        raise UsageError(f"there is nothing at {uri}.", REMEDY)
    scratch = Path(environment.mount(environment.SCRATCH_MOUNT))
    scratch = scratch if scratch.is_dir() else Path(tempfile.gettempdir())
    # An image that was written again is another one, though its name is the same.
    facts = [f"{entry.path}\0{entry.size}\0{entry.modified!r}" for entry in listing]
    folder = scratch / "oasis-data" / hashlib.sha256("\n".join([uri, *facts]).encode()).hexdigest()[:16]
    complete = folder / "complete"
    with _room(uri, listing, scratch):
        folder.mkdir(parents=True, exist_ok=True)
        # The first worker of a node copies while the others wait for its lock; a killed one's lock is gone with it.
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                _download(source, listing, folder / "images")
                complete.touch()
    return folder / "images"


@contextmanager
def _room(uri: str, listing: Sequence[Entry], scratch: Path) -> Iterator[None]:
    """Report a copy that does not fit on the disk as one that no other try on this node will improve."""
    try:
        yield
    except OSError as error:
        found = os.statvfs(scratch)
        size = sum(entry.size for entry in listing)
        raise PlaceError(
            f"the {size / 1e9:.1f} GB of {uri} cannot be copied to {scratch}: {error.strerror or error}; "
            f"{found.f_frsize * found.f_bavail / 1e9:.1f} GB are free there.",
            "Free some, or read the data from a mount: only a gs:// address in --data is copied to this disk.",
        ) from error


def _download(source: Folder, listing: Sequence[Entry], folder: Path) -> None:
    """Copy what is not there yet: whatever has its whole name was copied to its end by an earlier try."""

    def lacks(entry: Entry) -> bool:
        file = folder / entry.path
        return not file.is_file() or file.stat().st_size != entry.size

    def fetch(entry: Entry) -> None:
        file = folder / entry.path
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + PARTIAL)
        try:
            _copy_as_listed(source, entry, partial)
            partial.replace(file)
        except (OSError, DataIntegrityError):
            with suppress(OSError):
                partial.unlink(missing_ok=True)  # it may be what fills the disk
            raise

    waiting = list(filter(lacks, listing))
    # Checked before anything is copied: a copy that does not fit takes long to fail, and leaves the disk full.
    overwritten = sum(file.stat().st_size for file in folder.rglob(f"*{PARTIAL}"))  # what a killed try left
    if sum(entry.size for entry in waiting) > shutil.disk_usage(folder.parent).free + overwritten:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        for _ in pool.map(fetch, waiting):
            continue


def _copy_as_listed(source: Folder, entry: Entry, file: Path) -> None:
    try:
        size = source.copy(entry.path, file)
    except FileNotFoundError:
        size = None
    if size == entry.size:
        return
    raise DataIntegrityError(
        f"{source.uri}/{entry.path} was {'deleted' if size is None else 'written again'} while it was copied.",
        "Leave the data alone while it is read; run the command again.",
    )
