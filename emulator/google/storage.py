"""Objects of the emulated Cloud Storage: plain files below `buckets/<bucket>/`, so that a folder can stand for a mount.

An object appears complete, by one rename. A file that bypassed this module, through the "mount", is an object too; its
metadata is then computed anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from emulator.google.cloud import Cloud
from emulator.google.errors import CloudError, RefusedCall
from emulator.google.storage_index import Checksums, Index, ObjectFacts, Preconditions, examine

ANY = Preconditions()
"""Demands nothing."""


class ObjectStore:
    """All buckets' objects. Safe to use from several threads of the one process that serves them."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._root = cloud.directory / "buckets"
        self._uploads = cloud.directory / "uploads"
        self._lock = threading.RLock()
        for folder in (self._root, self._uploads):
            folder.mkdir(parents=True, exist_ok=True)
        self._index = Index(cloud.directory / "storage.sqlite")

    def bucket(self, bucket: str) -> Mapping[str, Any]:
        """The bucket's state. Raises NotFoundError if the emulated cloud has no such bucket."""
        state = self._cloud.get("storage/bucket", bucket).body
        self.folder(bucket)
        return state

    def folder(self, bucket: str) -> Path:
        """The folder that holds a bucket's objects; created if missing."""
        folder = self._root / bucket
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def temporary(self) -> Path:
        """An empty file on the same disk, to collect an upload in."""
        handle, path = tempfile.mkstemp(dir=self._uploads)
        os.close(handle)
        return Path(path)

    def path(self, bucket: str, name: str) -> Path:
        """Path of an object's bytes. Raises RefusedCall for a name that a folder cannot hold."""
        parts = name.removesuffix("/").split("/")
        if any(part in ("", ".", "..") or "\0" in part or len(part.encode()) > 255 for part in parts):
            message = f"Object name {name!r} cannot be kept here: no part may be empty, '.', '..' or over 255 bytes"
            raise RefusedCall(400, message, "invalid")
        return self._root.joinpath(bucket, *parts)

    def stat(self, bucket: str, name: str) -> ObjectFacts | None:
        """The object's facts, or None."""
        path = self.path(bucket, name)
        # Through the "mount", bypassing this module, it may be deleted at any time.
        with self._lock, contextlib.suppress(FileNotFoundError):
            if not path.exists() or path.is_dir() != name.endswith("/"):
                return None
            known = self._index.get(bucket, name)
            if path.is_dir():
                # A folder is an object of its own (a marker) if it was made as one, or holds nothing else.
                return known if known or any(path.iterdir()) else self._examined(bucket, name, path)
            status = path.stat()
            if known and (known.size, known.modified) == (status.st_size, status.st_mtime_ns):
                return known
            return self._examined(bucket, name, path)
        return None

    def get(self, bucket: str, name: str) -> ObjectFacts:
        """The object's facts. Raises RefusedCall (404)."""
        found = self.stat(bucket, name)
        if found is None:
            raise RefusedCall(404, f"No such object: {bucket}/{name}", "notFound")
        return found

    def put(
        self,
        bucket: str,
        name: str,
        content: Path,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        demands: Preconditions = ANY,
        sums: Checksums | None = None,
    ) -> ObjectFacts:
        """Make a file from `temporary` the object's content, in one step; with its `sums`, it is not read again.

        Raises RefusedCall or NotFoundError, and removes the file.
        """
        try:
            return self._put(bucket, name, content, examine(content, name, content_type, metadata, sums), demands)
        except CloudError:
            content.unlink(missing_ok=True)
            raise

    def _put(self, bucket: str, name: str, content: Path, facts: ObjectFacts, demands: Preconditions) -> ObjectFacts:
        self.bucket(bucket)
        target = self.path(bucket, name)
        with self._lock:
            before = self.stat(bucket, name)
            demands.check(before)
            self._require_room(bucket, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                target.mkdir(exist_ok=True)
                content.unlink()
            else:
                content.replace(target)
            generation = max(facts.generation, before.generation + 1 if before else 0)
            return self._index.put(
                bucket, name, replace(facts, generation=generation, modified=target.stat().st_mtime_ns)
            )

    def delete(self, bucket: str, name: str, demands: Preconditions = ANY) -> None:
        """Delete an object. Raises RefusedCall."""
        with self._lock:
            demands.check(self.get(bucket, name))
            path = self.path(bucket, name)
            self._index.forget(bucket, name)
            if not name.endswith("/"):
                path.unlink(missing_ok=True)  # another process may have deleted it meanwhile, through a mount
                path = path.parent
            self._prune(bucket, path)

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """Names of the objects that start with `prefix`, in the API's order: by their UTF-8 bytes."""
        self.bucket(bucket)
        folder, _, _ = prefix.rpartition("/")
        start = self.path(bucket, folder) if folder else self.folder(bucket)
        found: list[str] = []
        for directory, folders, files in os.walk(start):
            relative = Path(directory).relative_to(self._root / bucket).as_posix()
            below = "" if relative == "." else f"{relative}/"
            if below and ((not folders and not files) or self._index.get(bucket, below)):
                found.append(below)
            found += [below + file for file in files]
        return sorted((name for name in found if name.startswith(prefix)), key=str.encode)

    def drop(self, bucket: str, *, force: bool) -> None:
        """Delete the bucket's objects with it. Raises RefusedCall if there are any, unless forced."""
        if not force and self.names(bucket):
            raise RefusedCall(409, "The bucket you tried to delete is not empty.", "conflict")
        shutil.rmtree(self.folder(bucket), ignore_errors=True)
        self._index.forget(bucket)

    def _examined(self, bucket: str, name: str, path: Path) -> ObjectFacts:
        facts = examine(path, name)
        return self._index.put(bucket, name, replace(facts, generation=facts.modified // 1000))

    def _require_room(self, bucket: str, name: str) -> None:
        # Cloud Storage can hold both `a` and `a/b`; a folder, and hence a mount, cannot.
        target, root = self.path(bucket, name), self._root / bucket
        taken = [parent for parent in target.parents if parent.is_relative_to(root) and parent.is_file()]
        if taken or (target.is_dir() and not name.endswith("/")) or (target.is_file() and name.endswith("/")):
            other = (taken or [target])[0].relative_to(root).as_posix()
            message = f"{name!r} cannot be kept here beside {other!r}: one is a file where the other is a folder"
            raise RefusedCall(400, message, "invalid")

    def _prune(self, bucket: str, folder: Path) -> None:
        """Remove empty folders that are not objects themselves, from `folder` upwards."""
        root = self._root / bucket
        while folder != root and folder.is_dir() and not any(folder.iterdir()):
            if self._index.get(bucket, folder.relative_to(root).as_posix() + "/"):
                return
            folder.rmdir()
            folder = folder.parent
