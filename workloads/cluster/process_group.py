"""The meeting of ranks: rank 0 listens only on its node's own address; torch by itself would listen on every address.

The processes that meet import torch, not the one that listens: all ranks then spend those seconds in parallel.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SIOCGIFADDR = 0x8915  # netdevice(7)


def listen(address: str) -> socket.socket:
    """A listening socket for the ranks' meeting point, on this address and no other."""
    listener = socket.create_server((address, 0))
    listener.set_inheritable(False)
    return listener


def join(
    rank: int,
    ranks: int,
    address: str,
    port: int,
    listener: socket.socket | None,
    timeout: timedelta,
    device: torch.device,
) -> None:
    """Enter the process group: NCCL on a GPU, gloo elsewhere. Returns when all ranks have.

    Args:
        rank: of this process, from 0.
        ranks: how many there are.
        address: where rank 0's meeting point is.
        port: its port.
        listener: on rank 0, what `listen` returned.
        timeout: of the meeting, and of every collective after it.
        device: this rank's.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(
        address,
        port,
        world_size=ranks,
        is_master=listener is not None,
        timeout=timeout,
        master_listen_fd=listener.detach() if listener else None,
    )
    on_gpu = device.type == "cuda"
    if not on_gpu and (interface := _interface_of(_own_address(address, port))):
        # gloo takes the interface that the host's name resolves to, which need not be the one that the ranks share.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if on_gpu:
        # In torch 2.15 "nccl" is another implementation, in which the backward pass waits on its stream for each of
        # DDP's all-reduces (a future is done once `synchronize` is): they would no longer run side by side. Until both
        # were timed on GPUs, it is the older one, which is all that torch 2.11 has.
        os.environ.setdefault("TORCH_DIST_USE_NCCL2", "0")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )


def _interface_of(address: str) -> str | None:
    """Network interface that has this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(query, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _own_address(address: str, port: int) -> str:
    """The address that this machine has on the way to rank 0; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        query.connect((address, port))
        return query.getsockname()[0]


def leave() -> None:
    """Leave the process group, if this process is in one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
