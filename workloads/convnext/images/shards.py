"""Tar shards in webdataset's layout, read by random access: `<key>.jpg` (.jpeg, .png) and `<key>.cls` in `*.tar`.

An index beside each shard says where its pictures begin, so that every epoch can have its own order and a run can
resume in the middle of one; reading shards from front to back does not allow that.
"""

from __future__ import annotations

import json
import os
import resource
import tarfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workloads.convnext.images.pictures import READERS, SUFFIXES, unreadable
from workloads.errors import DataIntegrityError

INDEX_SUFFIX = ".index.json"
INDEX_VERSION = 1

CLASS_NAMES = "classes.txt"
"""File beside the splits with one class name a line; without it the classes are called by their numbers."""

LABEL_DIGITS = 9
"""Longest label that is taken for a number: more are not an index but a mistake."""

COPY_AGAIN = "Copy it again from where it was made."


@dataclass(frozen=True)
class ShardIndex:
    """The places of one shard's pictures, in the order in which they lie."""

    version: int
    bytes: int
    """Size of the shard that this describes."""
    offsets: list[int]
    """First byte of each picture."""
    sizes: list[int]
    """Length of each picture."""
    labels: list[int]
    """Number of each picture's class."""

    def encode(self) -> bytes:
        """The index with a checksum of itself, as JSON."""
        fields = asdict(self)
        return json.dumps({**fields, "crc32": _checksum(fields)}).encode()


def _checksum(fields: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


def shard_files(folder: Path) -> list[Path]:
    """The shards inside, sorted, without hidden ones."""
    # Path.glob passes over a file system that fails, from Python 3.12 on.
    try:
        found = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return sorted(file for file in found if file.suffix == ".tar" and not file.name.startswith("."))


def index_path(shard: Path) -> Path:
    """Path of the shard's index."""
    return shard.with_name(shard.name + INDEX_SUFFIX)


def shard_index(shard: Path) -> ShardIndex:
    """The shard's index: read, or where there is none reckoned from the shard and kept beside it if that is allowed.

    Raises:
        DataIntegrityError: shard or index are damaged, or do not belong together.
        PlaceError: they cannot be read.
    """
    file = index_path(shard)
    try:
        size = shard.stat().st_size
        content = file.read_bytes() if file.exists() else None
    except OSError as error:
        raise unreadable(str(error.filename or shard), error) from error
    if content is None:
        index = scan(shard)
        with suppress(OSError):  # a mounted bucket is read-only; every process then scans for itself
            keep(index, file)
        return index
    try:
        fields = json.loads(content)
        expected = fields.pop("crc32")
        index = ShardIndex(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(file) from error
    if expected != _checksum(fields) or index.version != INDEX_VERSION:
        raise _damaged(file)
    if index.bytes != size:
        raise DataIntegrityError(
            f"{shard} has {size} bytes, but its index describes {index.bytes}.",
            f"The shard was cut short or replaced. {COPY_AGAIN} If the shard is right, delete {file.name}.",
        )
    return index


def keep(index: ShardIndex, file: Path) -> None:
    """Write an index, which whoever reads sees whole or not at all; raises OSError."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_bytes(index.encode())
    partial.replace(file)


def _damaged(file: Path) -> DataIntegrityError:
    return DataIntegrityError(
        f"{file} is not an index of version {INDEX_VERSION}, or is damaged.",
        "Delete it: without an index the shard itself is read, and a new one is written.",
    )


def scan(shard: Path) -> ShardIndex:
    """Reckon a shard's index from its members.

    Raises:
        DataIntegrityError: it is no tar, ends too early, or a picture and its label are not both there.
        PlaceError: it cannot be read.
    """
    pictures: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with shard.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                key, suffix = _sample(member)
                if key in (pictures if suffix in SUFFIXES else labels if suffix == ".cls" else ()):
                    raise DataIntegrityError(f"{shard} has more than one {suffix} of {key}.", "Give each its own key.")
                if suffix in SUFFIXES:
                    pictures[key] = (member.offset_data, member.size)
                elif suffix == ".cls":
                    labels[key] = _label(archive, member, shard)
            # tarfile takes an end of file between two members for the end of the archive; a whole one is marked.
            stream.seek(archive.offset)
            marked = stream.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
            size = stream.seek(0, os.SEEK_END)
    except (tarfile.TarError, EOFError) as error:
        raise DataIntegrityError(f"{shard} is not a tar, or is cut short ({error}).", COPY_AGAIN) from error
    except OSError as error:
        raise unreadable(str(shard), error) from error
    if not marked:
        raise DataIntegrityError(f"{shard} is cut short: it ends without a tar's end marker.", COPY_AGAIN)
    _check_pairs(shard, set(pictures), set(labels))
    offsets, sizes = ([place[part] for place in pictures.values()] for part in (0, 1))
    return ShardIndex(INDEX_VERSION, size, offsets, sizes, [labels[key] for key in pictures])


def _sample(member: tarfile.TarInfo) -> tuple[str, str]:
    # webdataset's rule: the key goes up to the first dot of the file's name.
    folder, slash, file = member.name.rpartition("/")
    stem, dot, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix}".lower() if member.isreg() else ""


def _label(archive: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    stream = archive.extractfile(member)
    content = stream.read() if stream else b""
    if not content.strip().isdigit() or len(content.strip()) > LABEL_DIGITS:
        raise DataIntegrityError(
            f"{shard}: {member.name} holds {content[:20]!r}, not the number of a class.", "Numbers begin at 0."
        )
    return int(content)


def _check_pairs(shard: Path, pictures: set[str], labels: set[str]) -> None:
    if not pictures | labels:
        raise DataIntegrityError(f"{shard} holds no images.", "Remove it, or write it again.")
    lonely = {"an image but no label (.cls)": pictures - labels, "a label but no image": labels - pictures}
    for what, keys in lonely.items():
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            raise DataIntegrityError(f"{shard}: {min(keys)}{more} has {what}.", "Write the shard again with both.")


class ShardPictures:
    """One split of tar shards; see `PictureStore`."""

    def __init__(self, folder: Path, known: Sequence[str] | None) -> None:
        """Read the indices of all shards.

        Args:
            folder: the split, with one shard or more.
            known: the training split's classes, when this is another split.

        Raises:
            DataIntegrityError: a shard or its index is damaged, a class has no images, or a label no class.
            PlaceError: a file cannot be read.
        """
        self._shards = shard_files(folder)
        self._open: dict[int, int] = {}
        with ThreadPoolExecutor(READERS) as pool:
            indices = list(pool.map(shard_index, self._shards))
        # Arrays, not lists: see FolderPictures.
        self._shard = np.repeat(np.arange(len(indices)), [len(index.offsets) for index in indices])
        self._offsets = np.concatenate([np.asarray(index.offsets, dtype=np.int64) for index in indices])
        self._sizes = np.concatenate([np.asarray(index.sizes, dtype=np.int64) for index in indices])
        self.labels = np.concatenate([np.asarray(index.labels, dtype=np.int64) for index in indices])
        names = _class_names(folder.parent / CLASS_NAMES) if known is None else known
        missing = _first_gap(self.labels)
        if known is None and missing < (len(names) or self.labels.max() + 1):
            raise DataIntegrityError(
                f"class {names[missing] if names else str(missing)!r} has no images in {folder}.",
                "Labels count from 0 without gaps: add images, or write the labels again.",
            )
        self.classes = tuple(names or map(str, range(missing)))
        wrong = np.flatnonzero(self.labels >= len(self.classes))
        if len(wrong):
            raise DataIntegrityError(
                f"{self.name(int(wrong[0]))} has label {self.labels[wrong[0]]}, but there are only "
                f"{len(self.classes)} classes, numbered from 0.",
                f"Correct the label, or {CLASS_NAMES}.",
            )

    def name(self, index: int) -> str:
        shard, offset = self._shards[self._shard[index]], int(self._offsets[index])
        try:
            with shard.open("rb") as stream:
                stream.seek(offset - tarfile.BLOCKSIZE)
                header = stream.read(tarfile.BLOCKSIZE)
            return f"{shard}: {tarfile.TarInfo.frombuf(header, 'utf-8', 'surrogateescape').name}"
        except (OSError, tarfile.HeaderError):
            return f"{shard}: the image at byte {offset}"

    def read(self, index: int) -> bytes:
        shard, size = int(self._shard[index]), int(self._sizes[index])
        try:
            content = os.pread(self._descriptor(shard), size, int(self._offsets[index]))
        except OSError as error:
            raise unreadable(str(self._shards[shard]), error) from error
        if len(content) < size:
            raise DataIntegrityError(f"{self.name(index)} is cut short: the shard ends in it.", COPY_AGAIN)
        return content

    def _descriptor(self, shard: int) -> int:
        """Descriptor of a shard, which stays open: on a mount, opening and closing it costs a picture more calls than
        reading it does."""
        if shard not in self._open:
            if len(self._open) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4:  # of each split
                os.close(self._open.pop(next(iter(self._open))))
            self._open[shard] = os.open(self._shards[shard], os.O_RDONLY)
        return self._open[shard]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": {}}  # another process opens them for itself

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at an interpreter's end `os` may be gone
        for descriptor in getattr(self, "_open", {}).values():  # which a split that was refused may not have
            close(descriptor)


def _class_names(file: Path) -> Sequence[str]:
    if not file.is_file():
        return ()
    with file.open(encoding="utf-8", errors="replace") as lines:  # str.splitlines would also split at U+2028 in a name
        return [line.rstrip("\n") for line in lines]


def _first_gap(labels: NDArray[np.int64]) -> int:
    # The smallest number from 0 that is no label.
    present = np.unique(labels)
    gaps = np.flatnonzero(present != np.arange(len(present)))
    return int(gaps[0]) if len(gaps) else len(present)
