"""All-reduce and broadcast out of place by NCCL's own calls: torch has both in place only.

They go to the library that torch has loaded, on the communicator of torch's process group. torch's watchdog, which ends
a process whose collective hangs, does not see them: whoever waits for one keeps the time (`Rank._synchronize`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.errors import WorkloadFailedError
from workloads.nccl.definitions.collectives import ROOT

DATA_TYPES = {torch.int32: 2, torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
"""nccl.h, `ncclDataType_t`."""

_SUM = 0  # nccl.h, ncclRedOp_t
_SUCCESS = 0  # nccl.h, ncclResult_t

OwnCall = Callable[[Tensor, Tensor], None]
"""Reads the first tensor and writes the second; on a GPU, in torch's current stream."""


class Communicator:
    """NCCL's communicator of this process, by its address."""

    def __init__(self, address: int) -> None:
        self._address = ctypes.c_void_p(address)
        self._library = ctypes.CDLL("libnccl.so.2")  # by this name the loader finds the one that torch has loaded
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    @property
    def calls(self) -> Mapping[str, OwnCall]:
        """By the name of the collective."""
        return {"all_reduce": self.all_reduce, "broadcast": self.broadcast}

    def all_reduce(self, source: Tensor, target: Tensor) -> None:
        """Sum the ranks' sources into every rank's target, of as many elements.

        Raises:
            WorkloadFailedError: NCCL refuses the call.
        """
        self._make("ncclAllReduce", source, target, _SUM)

    def broadcast(self, source: Tensor, target: Tensor) -> None:
        """Copy the root's source into every rank's target, of as many elements.

        Raises:
            WorkloadFailedError: NCCL refuses the call.
        """
        self._make("ncclBroadcast", source, target, ROOT)

    def _make(self, function: str, source: Tensor, target: Tensor, role: int) -> None:
        stream = torch.cuda.current_stream(target.device).cuda_stream if target.is_cuda else None
        result = self._library[function](
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_size_t(target.numel()),
            DATA_TYPES[target.dtype],
            role,
            self._address,
            ctypes.c_void_p(stream),
        )
        if result != _SUCCESS:
            said = self._library.ncclGetErrorString(result).decode()
            raise WorkloadFailedError(
                f"{function} of {target.numel()} elements failed: {said}.", "NCCL's log of this rank says more."
            )


def communicator(device: torch.device) -> Communicator | None:
    """The process group's communicator on this device; None where torch has none there yet, or none whose calls block.

    gloo has none. NCCL's calls block unless TORCH_NCCL_USE_COMM_NONBLOCKING says otherwise (ProcessGroupNCCL.cpp).
    """
    group = dist.group.WORLD
    backend = group and group._get_backend(device)
    address = getattr(backend, "_comm_ptr", lambda: 0)()
    return Communicator(address) if address and "TORCH_NCCL_USE_COMM_NONBLOCKING" not in os.environ else None
