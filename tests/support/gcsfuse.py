"""A bucket in memory and mounts of it that keep gcsfuse's rules, with the system calls of `workloads.storage.disk`.

GoogleCloudPlatform/gcsfuse, docs/semantics.md: an object is there when its file is closed, whatever fsync says;
renaming a file is atomic; a mount may believe what it once saw, and reading what is gone by then fails with ESTALE.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass
class Bucket:
    """Objects by path, each with its generation, and the folders that were made."""

    objects: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {""})
    lies: bool = False
    """Whether the next object that is written comes to hold other bytes than were sent."""
    generations: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def put(self, path: str, content: bytes) -> None:
        if self.lies and content:
            content, self.lies = altered(content, 0.4), False
        self.objects[path] = (next(self.generations), content)


def altered(content: bytes, place: float) -> bytes:
    """The same with one bit flipped, at that share of its length."""
    at = int(len(content) * place)
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


class Mount:
    """One node's view of a bucket. A mount that trusts its caches (an infinite TTL) never looks at a thing twice."""

    def __init__(self, bucket: Bucket, *, trusting: bool = False) -> None:
        self._bucket, self._trusting = bucket, trusting
        self._seen: dict[str, tuple[int, int]] = {}  # path: generation and size
        self._listed: dict[str, list[str]] = {}
        self._writing: dict[int, tuple[str, bytearray]] = {}
        self._reading: dict[int, tuple[str, int, int]] = {}  # path, generation, position
        self._descriptors = itertools.count(3)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = next(self._descriptors)
        if flags & os.O_DIRECTORY:
            self._require(path in self._bucket.folders, errno.ENOENT, path)
        elif flags & os.O_WRONLY:
            self._require(path.rpartition("/")[0] in self._bucket.folders, errno.ENOENT, path)
            self._writing[descriptor] = (path, bytearray())
        else:
            self._reading[descriptor] = (path, self._look(path)[0], 0)
        return descriptor

    def write(self, descriptor: int, content: bytes | memoryview) -> int:
        self._writing[descriptor][1].extend(content)
        return len(content)

    def read(self, descriptor: int, length: int) -> bytes:
        path, generation, position = self._reading[descriptor]
        now, content = self._bucket.objects.get(path, (0, b""))
        if now != generation:
            self._seen.pop(path, None)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        piece = content[position : position + length]
        self._reading[descriptor] = (path, generation, position + len(piece))
        return piece

    def fsync(self, descriptor: int) -> None:
        """Nothing: only close makes an object."""

    def close(self, descriptor: int) -> None:
        self._reading.pop(descriptor, None)
        if descriptor in self._writing:
            path, content = self._writing.pop(descriptor)
            self._bucket.put(path, bytes(content))
            self._forget(path)

    def abandon(self, descriptor: int) -> None:
        """A close that failed: there is no object."""
        self._reading.pop(descriptor, None)
        self._writing.pop(descriptor, None)

    def replace(self, source: str, target: str) -> None:
        self._require(source in self._bucket.objects, errno.ENOENT, source)
        self._bucket.objects[target] = (next(self._bucket.generations), self._bucket.objects.pop(source)[1])
        self._forget(source, target)

    def unlink(self, path: str) -> None:
        self._require(path in self._bucket.objects, errno.ENOENT, path)
        del self._bucket.objects[path]
        self._forget(path)

    def mkdir(self, path: str) -> None:
        self._require(path not in self._bucket.folders, errno.EEXIST, path)
        self._require(path.rpartition("/")[0] in self._bucket.folders, errno.ENOENT, path)
        self._bucket.folders.add(path)
        self._forget(path)

    def rmdir(self, path: str) -> None:
        self._require(path in self._bucket.folders, errno.ENOENT, path)
        self._require(not self._children(path), errno.ENOTEMPTY, path)
        self._bucket.folders.remove(path)
        self._forget(path)

    def listdir(self, path: str) -> list[str]:
        if self._trusting and path in self._listed:
            return self._listed[path]
        self._require(path in self._bucket.folders, errno.ENOENT, path)
        self._listed[path] = self._children(path)
        return self._listed[path]

    def stat(self, path: str, *, follow_symlinks: bool = True) -> SimpleNamespace:
        if path in self._bucket.folders:
            return SimpleNamespace(st_mode=stat.S_IFDIR, st_size=0, st_mtime=0.0)
        return SimpleNamespace(st_mode=stat.S_IFREG, st_size=self._look(path)[1], st_mtime=0.0)

    def _look(self, path: str) -> tuple[int, int]:
        if not self._trusting or path not in self._seen:
            self._require(path in self._bucket.objects, errno.ENOENT, path)
            generation, content = self._bucket.objects[path]
            self._seen[path] = (generation, len(content))
        return self._seen[path]

    def _children(self, path: str) -> list[str]:
        inside = [name for name in {*self._bucket.objects, *self._bucket.folders} if name]
        return sorted(name.rpartition("/")[2] for name in inside if name.rpartition("/")[0] == path)

    def _forget(self, *paths: str) -> None:
        for path in paths:  # a mount knows what it changed itself
            self._seen.pop(path, None)
            self._listed.pop(path.rpartition("/")[0], None)

    @staticmethod
    def _require(holds: bool, error: int, path: str) -> None:
        if not holds:
            raise OSError(error, os.strerror(error), path)
