"""A training state as files: its tensors in shards of equal size, written and hashed in parallel, and its structure.

Each file is a `torch.save`, loaded with `weights_only=True`: a checkpoint is data, and runs no code when it is loaded.
"""

from __future__ import annotations

import copy
import hashlib
import io
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, cast

import torch
from torch import Tensor

from workloads.checkpoints import manifest
from workloads.errors import WorkloadError, first_line
from workloads.storage.folders import Folder, Sink, in_parallel

STRUCTURE = "structure.pt"
"""The state with an empty tensor in place of each tensor; the n-th of them stands for tensor n of the shards."""

SHARD_BYTES = 64 << 20
"""Size of a shard: large enough that latency does not matter, small enough that a gigabyte makes many streams."""

Files = dict[str, dict[str, Any]]


class CutError(WorkloadError):
    """A save was abandoned for a newer one."""


class _Hashed:
    """A file for torch.save: passes data on, counts and hashes it, and remembers the error that torch hides."""

    def __init__(self, sink: Sink, cut: threading.Event) -> None:
        self._sink, self._cut, self.bytes, self.sha256 = sink, cut, 0, hashlib.sha256()
        self._error: OSError | CutError | None = None

    def write(self, content: memoryview) -> int:
        try:
            _go_on(self._cut)
            self._sink.write(content)
        except (OSError, CutError) as error:
            self._error = self._error or error
            raise
        self.bytes += len(content)
        self.sha256.update(content)
        return len(content)

    def take_error(self) -> OSError | CutError | None:
        """The error, whose reference here is dropped: the frames in its traceback refer to this object."""
        error, self._error = self._error, None
        return error

    def flush(self) -> None:
        """Nothing is buffered here; torch.save requires the method."""


def write(folder: Folder, state: Mapping[str, Any], cut: threading.Event) -> Files:
    """Write a state's files.

    Args:
        folder: folder of this attempt at a checkpoint.
        cut: once it is set, no more is written.
        state: tensors and plain data in dicts, lists and tuples. A tensor that is part of a larger storage comes back
            with a storage of its own.

    Returns:
        Bytes and SHA-256 of each file, for the manifest.

    Raises:
        CutError: the save was cut.
    """
    tensors: list[Tensor] = []
    place = torch.empty(0)

    def take(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return place

    structure = _replaced(dict(state), take)
    shards = balance([tensor.nbytes for tensor in tensors], SHARD_BYTES)
    contents: list[tuple[str, Callable[[], object]]] = [(STRUCTURE, lambda: structure)]
    contents += [
        (f"shard-{number:03d}.pt", lambda shard=shard: {index: _own(tensors[index]) for index in shard})
        for number, shard in enumerate(shards)
    ]
    return dict(in_parallel(lambda file: _write_one(folder, *file, cut), contents))


def read(folder: Folder, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Read a state's files, each compared with the manifest before it is used.

    Raises:
        DataIntegrityError: a file is missing, differs, or is not a state.
    """

    def load(name: str) -> Any:
        try:
            content = folder.read(name)
        except FileNotFoundError as error:
            raise manifest.damage(first_line(error)) from error
        manifest.check(name, files[name], len(content), hashlib.sha256(content).hexdigest())
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise manifest.damage(f"{name} does not load ({first_line(error)})") from error

    names = [STRUCTURE, *sorted(set(files) - {STRUCTURE})]
    structure, *shards = in_parallel(load, names)
    tensors: dict[int, Tensor] = {index: tensor for shard in shards for index, tensor in shard.items()}
    order = iter(range(len(tensors)))
    return _replaced(structure, lambda _: tensors[next(order)])


def balance(sizes: Sequence[int], target: int) -> list[list[int]]:
    """Distribute tensors over shards of nearly equal size: the largest first, each to the shard with the least.

    R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969.

    Args:
        sizes: bytes of each tensor.
        target: bytes that a shard should not exceed by much.

    Returns:
        The tensor indices of each shard; every index occurs once.
    """
    shards: list[list[int]] = [[] for _ in range(max(1, -(-sum(sizes) // target)))]
    loads = [0] * len(shards)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        least = loads.index(min(loads))
        shards[least].append(index)
        loads[least] += sizes[index]
    return [shard for shard in shards if shard]


def _write_one(
    folder: Folder, name: str, content: Callable[[], object], cut: threading.Event
) -> tuple[str, dict[str, Any]]:
    _go_on(cut)
    with folder.create(name) as sink:
        stream, failure = _Hashed(sink, cut), None
        try:
            torch.save(content(), cast(IO[bytes], stream))  # it uses only `write` and `flush`
        except (RuntimeError, OSError, CutError) as error:
            # torch finishes its archive even so, and fails again, on the length of what was written.
            failure = stream.take_error() or error
        if failure is not None:
            # Drop the second failure, whose frames refer to the first: a cycle would keep the state's copy alive.
            failure.__context__ = None
            try:
                raise failure.with_traceback(None)
            finally:
                del failure
    return name, {"bytes": stream.bytes, "sha256": stream.sha256.hexdigest()}


def _go_on(cut: threading.Event) -> None:
    if cut.is_set():
        raise CutError("This save was given up for a newer one.", "The newer one is the checkpoint to look at.")


def _own(tensor: Tensor) -> Tensor:
    """The tensor in a storage of its own size: torch.save writes whole storages."""
    tensor = tensor.detach()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _replaced(value: Any, leaf: Callable[[Tensor], Any]) -> Any:
    """A copy of nested containers with every tensor replaced, in order."""
    if isinstance(value, Tensor):
        return leaf(value)
    if isinstance(value, tuple):
        return tuple(_replaced(item, leaf) for item in value)
    if isinstance(value, dict | list):
        places: Iterable[Any] = list(value) if isinstance(value, dict) else range(len(value))
        fresh = copy.copy(value)
        for place in places:
            fresh[place] = _replaced(value[place], leaf)
        return fresh
    return value
