"""The start of decoder processes: as forks of a server that has neither CUDA nor NCCL nor Ray, never of the rank.

A fork of a rank has its memory and only one of its threads, whichever thread held which lock. Ray Train's loaders have
deadlocked in that way (ray-project/ray pull request 52598), and Megatron-Bridge's hung over RDMA
(NVIDIA-NeMo/Megatron-Bridge issue 5006). The server is started by `exec`, which keeps nothing of the rank.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Generic, TypeVar

import numpy as np
import torch

Value = TypeVar("Value")

IMPORTED = ["PIL.Image", "simplejpeg", "torch.utils.data", "torchvision.transforms.v2"]
"""What the server imports once for all that it forks. None of this package: the server finds what Python is installed
with, and a fork has the rank's search path."""


class Decoder(ForkServerProcess):
    """A process of the loader."""

    def start(self) -> None:
        """Start it without the rank's `__main__`, which a process would import: under Ray that is Ray's own worker
        (ray-project/ray issue 58967)."""
        with _bare_main():
            super().start()


class Context(ForkServerContext):
    """The multiprocessing context of a DataLoader."""

    Process = Decoder


class Shared(Generic[Value]):
    """A value whose arrays all processes read in the same memory, where each would get a copy with its message."""

    def __init__(self, value: Value) -> None:
        """Copy the arrays to shared memory.

        Args:
            value: that can be pickled.
        """
        buffers: list[pickle.PickleBuffer] = []
        self._rest = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
        self._arrays = [torch.tensor(array).share_memory_() for array in arrays]

    def value(self) -> Value:
        """The value, with the shared arrays."""
        return pickle.loads(self._rest, buffers=[array.numpy() for array in self._arrays])


def prepare() -> Context:
    """Start this process's server, if there is none; its imports take seconds, in which the model can be built."""
    context = Context()
    context.set_forkserver_preload(IMPORTED)
    forkserver.ensure_running()
    return context


def end_with_rank(number: int) -> None:
    """In a process of the loader: end when the rank does, however it does.

    torch looks at the parent for that, which is the server, and the server stays for as long as it has a process.

    Args:
        number: of the process in its loader.
    """
    threading.Thread(target=_outlive, daemon=True).start()


def _outlive() -> None:
    rank = multiprocessing.parent_process()
    assert rank is not None
    rank.join()
    os._exit(1)


@contextlib.contextmanager
def _bare_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
