"""The lock that lets one driver of a machine train a run, where each has a Ray of its own and sees no other's actors.

It is a socket's name, which the kernel gives once. Imports no Ray, which is not prepared yet when a run is refused.
"""

from __future__ import annotations

import errno
import hashlib
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from workloads.errors import UsageError


@contextmanager
def hold(uri: str, run: str) -> Iterator[None]:
    """Be the only driver of a run on this machine. Elsewhere than on Linux nothing holds another one back.

    Args:
        uri: address of the run's folder.
        run: its name, for the message.

    Raises:
        UsageError: another driver is alive.
    """
    if sys.platform != "linux":
        yield
        return
    with socket.socket(socket.AF_UNIX) as held:
        try:
            # An abstract name (unix(7)) leaves no file, and is free when its process has ended.
            held.bind(f"\0oasis-train-{hashlib.sha256(uri.encode()).hexdigest()}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise UsageError(
                f"run {run} is being trained by another `train` on this machine, into {uri}.",
                "Wait for it, end it with Ctrl-C, or choose another --run name.",
            ) from error
        yield
