"""Files on a local path or a FUSE mount of a bucket, over system calls that can each be made to fail.

gcsfuse's rules hold here (GoogleCloudPlatform/gcsfuse, docs/semantics.md): an object exists once its file is closed,
and fsync does not make it so; a file's rename is atomic, a folder's is not; a cached view of a file may be stale.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

CHUNK = 8 << 20
"""Bytes read at a time where a file's hash is wanted and not its content."""

PARTIAL = ".partial"
"""Ending of a file that is being written, and is renamed when it is whole."""

LOST_AND_FOUND = "lost+found"
"""Folder at the root of an ext4 disk, for e2fsck; only root may list it (mklost+found(8))."""

_BUFFER = 1 << 20
_STALE_TRIES = 3
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)

T = TypeVar("T")


calls = os
"""Every call with which this module reaches the file system; tests and benchmarks put others in their place."""


@dataclass(frozen=True)
class Entry:
    """A listing's row on one object or folder."""

    path: str
    """Relative to the folder that was listed."""
    is_file: bool
    """Whether it is an object, and not a folder."""
    size: int
    """Bytes; 0 for a folder."""
    modified: float
    """Unix time of the last change; 0 where the storage does not say."""


class Stream:
    """A file being written: small pieces are gathered, large ones go to the file as they are."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._gathered = descriptor, bytearray()

    def write(self, content: bytes | memoryview) -> int:
        """Add bytes; returns how many, which is all of them."""
        content = memoryview(content).cast("B")
        if len(self._gathered) + len(content) > _BUFFER:
            self.flush()
        if len(content) > _BUFFER:
            self._put(content)
        else:
            self._gathered += content
        return len(content)

    def flush(self) -> None:
        """Hand what was gathered to the file system."""
        gathered, self._gathered = self._gathered, bytearray()
        self._put(memoryview(gathered))

    def _put(self, content: memoryview) -> None:
        while content:
            content = content[calls.write(self._descriptor, content) :]


@contextmanager
def create(path: str) -> Iterator[Stream]:
    """Write a file piece by piece. Readers may see part of it: for names that nobody reads before a marker exists."""
    _make_folder(posixpath.dirname(path))
    descriptor = calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        stream = Stream(descriptor)
        yield stream
        stream.flush()
        calls.fsync(descriptor)
    except BaseException:
        _close_quietly(descriptor)
        raise
    calls.close(descriptor)  # on a mount, the upload ends here, or fails here


def write(path: str, content: bytes | memoryview) -> None:
    """Write a file that readers see whole or not at all, and that a loss of power does not take back."""
    with create(path + PARTIAL) as stream:
        stream.write(content)
    calls.replace(path + PARTIAL, path)
    _sync_folder(posixpath.dirname(path))


def read(path: str) -> bytes:
    """A file's content."""
    return _while_stale(lambda: b"".join(_chunks(path, calls.stat(path).st_size + 1)))


def digest(path: str) -> tuple[int, str]:
    """A file's bytes, counted, and their SHA-256, holding a few of them at a time."""

    def count() -> tuple[int, str]:
        total, sha256 = 0, hashlib.sha256()
        for chunk in _chunks(path, CHUNK):
            total += len(chunk)
            sha256.update(chunk)
        return total, sha256.hexdigest()

    return _while_stale(count)


def entries(path: str, prefix: str = "") -> list[Entry]:
    """Everything below a folder; nothing where there is none. What is deleted meanwhile is left out."""
    found: list[Entry] = []
    try:
        names = calls.listdir(path)
    except FileNotFoundError:
        return found
    for name in names:
        if name == LOST_AND_FOUND:
            continue
        try:
            facts = calls.stat(f"{path}/{name}", follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(facts.st_mode):
            found.append(Entry(prefix + name, False, 0, facts.st_mtime))
            found += entries(f"{path}/{name}", f"{prefix}{name}/")
        else:
            found.append(Entry(prefix + name, True, facts.st_size, facts.st_mtime))
    return found


def delete(path: str) -> None:
    """Delete one file; nothing happens if it is gone."""
    _remove_one(path, True)


def remove(path: str) -> None:
    """Delete a folder and everything in it; nothing happens to what is gone."""
    for entry in reversed(entries(path)):  # a folder stands before what is in it
        _remove_one(f"{path}/{entry.path}", entry.is_file)
    _remove_one(path, False)


def _remove_one(path: str, is_file: bool) -> None:
    try:
        (calls.unlink if is_file else calls.rmdir)(path)
    except FileNotFoundError:
        return


def _chunks(path: str, length: int) -> Iterator[bytes]:
    descriptor = calls.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := calls.read(descriptor, length):
            yield chunk
    finally:
        _close_quietly(descriptor)


def _while_stale(read_it: Callable[[], T]) -> T:
    """Opening a file anew is what gcsfuse asks of a reader whose view of it was stale."""
    for _ in range(_STALE_TRIES - 1):
        try:
            return read_it()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return read_it()


def _make_folder(path: str) -> None:
    try:
        calls.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folder(posixpath.dirname(path))
        try:
            calls.mkdir(path)
        except FileExistsError:
            return
    _sync_folder(posixpath.dirname(path))


def _sync_folder(path: str) -> None:
    """Make the names in a folder durable; a mount has nothing to do for that, and may report so."""
    descriptor = calls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        calls.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        _close_quietly(descriptor)


def _close_quietly(descriptor: int) -> None:
    """Close what has been read or has failed already: the first error is the one to tell."""
    try:
        calls.close(descriptor)
    except OSError:
        return
