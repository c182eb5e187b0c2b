"""Writes tar shards with their indices: from an image folder (`python -m workloads shards`) or from any pictures.
Beside shards from elsewhere it writes the indices alone.

A split appears under its name when it is complete, so that an interrupted run leaves nothing that looks like data.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from workloads.convnext.images.folder import FolderPictures
from workloads.convnext.images.location import SPLITS
from workloads.convnext.images.pictures import READERS, unreadable
from workloads.convnext.images.shards import CLASS_NAMES, index_path, keep, scan, shard_files
from workloads.errors import EXIT_OK, PlaceError, UsageError
from workloads.reporting import progress

ELSEWHERE = "Name another place with --to."

SHARD_MEGABYTES = 256
"""A shard is closed when it reaches this: large enough that opening one costs little, small enough to copy again."""


@dataclass(frozen=True)
class Picture:
    """One picture as a shard keeps it."""

    key: str
    """Name within the split, with no dot after its last slash."""
    suffix: str
    """`.jpg`, `.jpeg` or `.png`."""
    content: bytes
    label: int


def write_split(pictures: Iterable[Picture], folder: Path, shard_megabytes: float = SHARD_MEGABYTES) -> int:
    """Write one split's shards; the same pictures in the same order give the same bytes.

    Args:
        pictures: what to write, in the order in which it is to lie.
        folder: the split, which must not exist yet.
        shard_megabytes: size at which a shard is closed, in 10^6 bytes.

    Returns:
        How many shards there are.

    Raises:
        UsageError: the folder exists.
        PlaceError: the disk refuses.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already.", "Remove it, or name another place with --to.")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        rest, number = iter(pictures), 0
        while _write_shard(rest, partial / f"{number:05d}.tar", shard_megabytes):
            number += 1
        partial.rename(folder)
    except OSError as error:
        raise PlaceError(f"cannot write to {folder}: {error}.", ELSEWHERE) from error
    return number


def _write_shard(pictures: Iterator[Picture], shard: Path, megabytes: float) -> bool:
    first = next(pictures, None)
    if first is None:
        return False
    with shard.open("wb") as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, first)
        while stream.tell() < megabytes * 1e6 and (picture := next(pictures, None)):
            _add(archive, picture)
    # Reckoned from what was written, and so a check of it.
    index_path(shard).write_bytes(scan(shard).encode())
    return True


def _add(archive: tarfile.TarFile, picture: Picture) -> None:
    for suffix, content in ((picture.suffix, picture.content), (".cls", str(picture.label).encode())):
        member = tarfile.TarInfo(picture.key + suffix)  # of no owner and time
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


def folder_pictures(split: FolderPictures) -> Iterator[Picture]:
    """An image folder's pictures in an order that mixes the classes, for readers that go from front to back."""
    numbers = list(range(len(split.labels)))
    random.Random(0).shuffle(numbers)
    taken: set[str] = set()
    for number in numbers:
        path = split.path(number)
        key = f"{path.parent.name}/{path.stem.replace('.', '_')}"  # a dot would end the key
        while key in taken:  # as 1.jpg's by 1.png
            key = f"{key}-{number}"
        taken.add(key)
        yield Picture(key, path.suffix.lower(), split.read(number), int(split.labels[number]))


def add_shards_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads shards`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="source", type=Path, metavar="FOLDER", help="the image folder")
    source.add_argument(
        "--index", type=Path, metavar="FOLDER", help="shards from elsewhere: write the index beside each that has none"
    )
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="where the shards are written")
    size = "size at which a shard is closed (default %(default)s)"
    parser.add_argument("--shard-megabytes", type=float, default=SHARD_MEGABYTES, metavar="N", help=size)


def run_shards(args: argparse.Namespace) -> int:
    """Write both splits of an image folder as shards, or the indices of shards; returns the exit code."""
    if args.index:
        if args.to:
            raise UsageError("--to goes with --from only: --index writes each index beside its shard.", "Leave it out.")
        return _index(args.index)
    if not args.to:
        raise UsageError("--from needs --to.", "Name the folder for the shards with --to.")
    if args.shard_megabytes <= 0:
        raise UsageError(f"--shard-megabytes is {args.shard_megabytes:g}, but must be above 0.", "256 is usual.")
    for split in ("train", "val"):
        if not (args.source / split).is_dir():
            raise UsageError(f"{args.source} holds no folder {split!r}.", "Name an image folder with --from.")
    train = FolderPictures(args.source / "train", None)
    val = FolderPictures(args.source / "val", train.classes)
    _write_noting(train, args.to / "train", args.shard_megabytes)
    # Before the second split: until both are there, no reader takes the folder for data.
    _write_names(train.classes, args.to / CLASS_NAMES)
    _write_noting(val, args.to / "val", args.shard_megabytes)
    return EXIT_OK


def _index(root: Path) -> int:
    try:
        shards = [shard for split in SPLITS for shard in shard_files(root / split)]
    except OSError as error:
        raise unreadable(str(error.filename or root), error) from error
    if not shards:
        raise UsageError(f"{root} holds no shards.", "They must lie in it as train/*.tar and val/*.tar.")
    bare = [shard for shard in shards if not index_path(shard).exists()]
    if bare:
        progress.note(f"reading {progress.counted(len(bare), 'shard')} of {root}")

    def write(shard: Path) -> None:
        index, file = scan(shard), index_path(shard)
        try:
            keep(index, file)
        except OSError as error:
            remedy = "Copy the shards to where you may write, index them there, and copy the *.index.json files back."
            raise PlaceError(f"cannot write {file}: {error.strerror or error}.", remedy) from error

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(write, bare))
    written = "index" if len(bare) == 1 else "indices"
    progress.note(f"{len(bare)} {written} written; {progress.counted(len(shards) - len(bare), 'shard')} had one")
    return EXIT_OK


def _write_noting(split: FolderPictures, folder: Path, shard_megabytes: float) -> None:
    count = write_split(folder_pictures(split), folder, shard_megabytes)
    images, shards = progress.counted(len(split.labels), "image"), progress.counted(count, "shard")
    progress.note(f"{images} in {shards} written to {folder}")


def _write_names(classes: Sequence[str], file: Path) -> None:
    try:
        file.write_bytes(b"".join(os.fsencode(name) + b"\n" for name in classes))
    except OSError as error:
        raise PlaceError(f"cannot write {file}: {error.strerror or error}.", ELSEWHERE) from error
