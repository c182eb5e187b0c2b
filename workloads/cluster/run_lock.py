"""The locks that let one driver train a run: one among all jobs of a Ray, and one on a machine without a common Ray.

In a Ray the lock is a named actor, which dies with its driver and needs no expiry; on a machine it is a socket's name,
which the kernel gives once. Ray is imported only where it is used, because it is not prepared yet when a run is refused
on its machine; the actor's process imports this module, and torch would cost it half a gigabyte.
"""

from __future__ import annotations

import errno
import hashlib
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workloads.errors import UsageError

NAMESPACE = "oasis-runs"

PATIENCE_SECONDS = 20.0
"""How long a killed driver's actors may outlive it, before a lease counts as held by someone alive."""


@contextmanager
def hold(uri: str, run: str, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Be the only driver of a run, among all jobs of this Ray, for the length of the block.

    Args:
        uri: address of the run's folder, which is what must not be written by two.
        run: its name, for the message.
        patience_seconds: how long to wait for another driver to be gone.

    Raises:
        UsageError: another driver holds it.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # Nothing is imported for it: a fork server would be of its own, as its environment is not Ray Train's.
    plain = {"py_executable": sys.executable}
    actor = ray.remote(num_cpus=0, runtime_env=plain)(_Lease).options(
        name=uri, namespace=NAMESPACE, scheduling_strategy=here
    )
    holders = []
    deadline = time.monotonic() + patience_seconds
    while not holders:
        try:
            holders.append(actor.remote())
        except ValueError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"run {run} is being trained by another job of this cluster.",
                    "Wait for it, stop it with `python -m workloads jobs stop`, or choose another --run name.",
                ) from error
            time.sleep(1)
    try:
        yield
    finally:
        holders.clear()  # the last handle: without one Ray ends the actor and frees the name


@contextmanager
def hold_here(uri: str, run: str) -> Iterator[None]:
    """Be the only driver of a run on this machine, if it is a Linux one; elsewhere `run_beat` alone tells of another.

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
            held.bind(f"\0oasis-run-{hashlib.sha256(uri.encode()).hexdigest()}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise UsageError(
                f"run {run} is being trained by another command on this machine, into {uri}.",
                "Wait for it, end it with Ctrl-C, or choose another --run name.",
            ) from error
        yield


class _Lease:
    """Exists as long as the driver that made it."""
