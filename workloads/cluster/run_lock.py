"""The lock that lets one driver of a Ray train a run: a named actor that dies with its driver, and needs no expiry.

It is imported by the actor's process, and therefore imports no torch, which would cost that process half a gigabyte.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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


class _Lease:
    """Exists as long as the driver that made it."""
