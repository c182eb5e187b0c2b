"""Addresses on which this machine's Ray processes listen, from the kernel (proc(5): net/tcp, net/tcp6, <pid>/fd)."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h


def ray_processes() -> list[int]:
    """Processes of every Ray on this machine."""
    return [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit() and _is_ray(process)]


def of(pids: Iterable[int]) -> list[tuple[str, bool]]:
    """Each address that one of these processes listens at, and whether it is a loopback one.

    Args:
        pids: another user's are passed over, as the kernel does not show their sockets.
    """
    listening = dict(_listening())
    found: dict[str, bool] = {}
    for pid in pids:
        for inode in _sockets(Path("/proc", str(pid))):
            if inode in listening:
                address, port = listening[inode]
                found[f"{address}:{port}"] = address.is_loopback
    return sorted(found.items())


def parse(line: str) -> tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address, int] | None:
    """Inode, address and port of a listening socket's line in net/tcp or net/tcp6; None for any other line."""
    fields = line.split()
    if len(fields) < 10 or fields[3] != _LISTEN:
        return None
    digits, _, port = fields[1].partition(":")
    # The kernel prints an address as 32-bit words in the machine's own byte order.
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    if len(packed) == 4:
        return fields[9], ipaddress.IPv4Address(packed), int(port, 16)
    address = ipaddress.IPv6Address(socket.inet_ntop(socket.AF_INET6, packed))
    return fields[9], address.ipv4_mapped or address, int(port, 16)


def _listening() -> Iterator[tuple[str, tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():  # a kernel without IPv6
            continue
        for line in Path(table).read_text().splitlines():
            if parsed := parse(line):
                yield parsed[0], (parsed[1], parsed[2])


def _is_ray(process: Path) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return False
    return (
        command.startswith((b"ray::", b"ray-dashboard"))
        or b"/ray/core/src/" in command
        or b"/ray/dashboard/" in command
    )


def _sockets(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # another user's, or ended meanwhile
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile; the others are still open
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]
