"""Makes each I/O call of a save fail in turn, below the code that saves: system calls on a disk, pyarrow's on gs.

The method is SQLite's (sqlite.org/testing.html, "I/O error testing"): call 1 fails, then call 2, and so on until a save
ends before the n-th call comes.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import torch
from pyarrow import fs

from workloads.checkpoints import state as checkpoint_state
from workloads.checkpoints.store import CheckpointStore
from workloads.errors import WorkloadError
from workloads.storage import disk
from workloads.storage.folders import Folder, locate

ERRORS = (errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ENOTCONN)
IDENTITY = {"model": "faults"}

HANG_SECONDS = 30.0
"""A failing save that has not ended by then counts as hanging."""


@dataclass
class PlannedFailure:
    """One planned failure: call number `at` fails, alone or with all later calls."""

    at: int
    error: int
    lasting: bool
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self) -> bool:
        """Count one call; returns whether it must fail."""
        with self.lock:
            self.calls += 1
            return self.calls == self.at or (self.lasting and self.calls > self.at)

    def exception(self) -> Exception:
        """The exception that the call raises."""
        return OSError(self.error, os.strerror(self.error))


class FaultyCalls:
    """The system calls of `workloads.storage.disk`, with a fault in them."""

    def __init__(self, fault: PlannedFailure, below: Any = disk.calls) -> None:
        """Wrap `below`, which is the operating system or has the same calls."""
        self._fault, self._below = fault, below

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name, getattr(self._below, name))

    def _call(self, name: str, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if not self._fault.strikes():
            return real(*args, **named)
        if name == "write":
            real(args[0], bytes(args[1][: len(args[1]) // 2]))  # a disk fills up in the middle of a write
        if name == "close":
            getattr(self._below, "abandon", real)(*args)  # the descriptor is gone whatever close says
        raise self._fault.exception()


class FaultyStore(fs.FileSystemHandler):
    """Objects in memory by Cloud Storage's rules (complete at close, folders only in names), with a fault in it."""

    def __init__(self, fault: PlannedFailure) -> None:
        self.fault = fault
        self.objects: dict[str, bytes] = {}

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def get_type_name(self) -> str:
        return "objects"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        self.strike()
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self.strike()
        return [self._info(path) for path in sorted(self.objects) if path.startswith(f"{selector.base_dir}/")]

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        self.strike()
        return pa.PythonFile(_Upload(self, path), mode="w")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        self.strike()
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.PythonFile(_Download(self, self.objects[path]), mode="r")

    def delete_dir(self, path: str) -> None:
        for name in [name for name in self.objects if name.startswith(f"{path}/")]:
            self.delete_file(name)

    def delete_file(self, path: str) -> None:
        self.strike()
        self.objects.pop(path, None)

    def _unused(self, *_: Any) -> Any:
        """No save calls this."""
        raise NotImplementedError

    open_append_stream = open_input_file = create_dir = move = copy_file = _unused
    delete_dir_contents = delete_root_dir_contents = _unused

    def strike(self) -> None:
        """Fail if this call must."""
        if self.fault.strikes():
            raise self.fault.exception()

    def _info(self, path: str) -> fs.FileInfo:
        if path in self.objects:
            return fs.FileInfo(path, type=fs.FileType.File, size=len(self.objects[path]), mtime=time.time())
        inside = any(name.startswith(f"{path}/") for name in self.objects)
        return fs.FileInfo(path, type=fs.FileType.Directory if inside else fs.FileType.NotFound)


class _Upload:
    """An object being written; it appears at close, with what was written by then."""

    def __init__(self, store: FaultyStore, path: str) -> None:
        self._store, self._path, self._content, self.closed = store, path, bytearray(), False

    def write(self, content: bytes) -> int:
        self._store.strike()
        self._content += content
        return len(content)

    def flush(self) -> None:
        """Do nothing: an upload happens at close."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._store.strike()
            self._store.objects[self._path] = bytes(self._content)


class _Download:
    def __init__(self, store: FaultyStore, content: bytes) -> None:
        self._store, self._content, self._at, self.closed = store, content, 0, False

    def read(self, size: int = -1) -> bytes:
        self._store.strike()
        end = len(self._content) if size < 0 else self._at + size
        piece, self._at = self._content[self._at : end], min(end, len(self._content))
        return piece

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class SaveOutcome:
    """Leftovers of one failing save."""

    struck: bool
    """Whether the call that must fail came at all."""
    raised: str
    """Name of the exception; empty if the save succeeded nevertheless."""
    seconds: float
    valid: bool
    """Whether the newest checkpoint loads, is as new as the last acknowledged one, and holds what was saved."""
    saves_again: bool
    """Whether the next save succeeds, and leaves nothing but checkpoints."""


@contextmanager
def disk_place(fault: PlannedFailure) -> Iterator[Folder]:
    """A folder on a disk whose calls go through the fault."""
    with (
        tempfile.TemporaryDirectory(prefix="oasis-faults-") as folder,
        mock.patch.object(disk, "calls", FaultyCalls(fault)),
    ):
        yield locate(Path(folder) / "run")


@contextmanager
def object_place(fault: PlannedFailure) -> Iterator[Folder]:
    """A folder of an object store whose calls go through the fault."""
    yield Folder("objects://bucket/run", fs.PyFileSystem(FaultyStore(fault)), "bucket/run")


PLACES: dict[str, Callable[[PlannedFailure], Any]] = {"disk": disk_place, "object store": object_place}


def state(step: int) -> dict[str, Any]:
    """A small state in a few shards, with its step in every tensor."""
    return {"weights": [torch.full((3000,), float(step)) for _ in range(4)], "step": step}


def strike(place: str, at: int, error: int, lasting: bool) -> SaveOutcome:
    """Make one save whose I/O call number `at` fails, and examine what is there afterwards.

    Args:
        place: one of PLACES.
        at: number of the call.
        error: errno it fails with.
        lasting: whether all later calls of the save fail too.
    """
    fault = PlannedFailure(0, error, lasting=False)
    with PLACES[place](fault) as folder, mock.patch.object(checkpoint_state, "SHARD_BYTES", 20_000):
        store = CheckpointStore(folder, keep=2)
        for step in (1, 2):
            store.save(state(step), step, IDENTITY, {})
        fault.calls, fault.at, fault.lasting = 0, at, lasting
        began, raised = time.monotonic(), ""
        try:
            store.save(state(3), 3, IDENTITY, {})
        except WorkloadError as failure:
            raised = type(failure).__name__
        seconds, struck = time.monotonic() - began, fault.calls >= at
        fault.at, fault.lasting = 0, False
        valid = _valid(folder, at_least=2 if raised else 3)
        return SaveOutcome(struck, raised, seconds, valid, _saves_again(folder))


def sweep(place: str, error: int, lasting: bool) -> Iterator[SaveOutcome]:
    """Outcomes for call 1, 2, ... until a save ends before its fault."""
    at = 1
    while (outcome := strike(place, at, error, lasting)).struck:
        yield outcome
        at += 1


def _valid(folder: Folder, at_least: int) -> bool:
    found = CheckpointStore(folder, keep=2).newest(IDENTITY, lambda _: None)
    if found is None or found.manifest["step"] < at_least:
        return False
    step = found.manifest["step"]
    return found.state["step"] == step and all(bool((part == step).all()) for part in found.state["weights"])


def _saves_again(folder: Folder) -> bool:
    store = CheckpointStore(folder, keep=2)
    store.collect()
    store.save(state(9), 9, IDENTITY, {})
    return _valid(folder, at_least=9) and folder.names() == store.committed() and len(store.committed()) == 2
