"""The number of workers that there are places for at this moment, according to Ray's scheduler, which knows what is
busy.

The places are not held. The next request for them may find fewer, and then gathers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from workloads.cluster import autoscaler, capacity
from workloads.cluster.capacity import Bundle, CapacityRequest, Strategy

SETTLE_SECONDS = 10.0
"""How long places that ended workers held may take to be free again: on a busy machine more than two seconds."""

TRY_SECONDS = 0.5
"""How long one number of workers is tried, when more of them have no places."""


def gather(
    bundle: Bundle,
    least: int,
    most: int,
    timeout_seconds: float,
    report: Callable[[str], None],
    strategy: Strategy,
) -> int:
    """Wait until there are places for at least `least` workers, and count them, up to `most`.

    Args:
        bundle: what each worker needs.
        least: the fewest that are of use.
        most: the most that are wanted.
        timeout_seconds: longest wait.
        report: told of each change, and every ten seconds.
        strategy: where they may go.

    Raises:
        InfeasibleError: the cluster can never hold `least`.
        CapacityError: it could, but did not in time.
    """
    could = _held_by_those_that_stay(bundle, most, strategy)
    if least < could and placeable([bundle] * could, strategy, SETTLE_SECONDS):
        return could
    with capacity.hold([bundle] * least, timeout_seconds, report, strategy):
        pass
    fits, limit = least, _held_by_those_that_stay(bundle, most, strategy) + 1  # nodes may have come meanwhile
    while limit - fits > 1:
        middle = (fits + limit) // 2
        fits, limit = (middle, limit) if placeable([bundle] * middle, strategy, TRY_SECONDS) else (fits, middle)
    return fits


def _held_by_those_that_stay(bundle: Bundle, most: int, strategy: Strategy) -> int:
    """Number of `most` that the nodes not drained could hold, were they free: for others there is no waiting."""
    going = autoscaler.draining()
    staying = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in going]
    return CapacityRequest((bundle,) * most, strategy).fitting(staying)


def placeable(bundles: Sequence[Bundle], strategy: Strategy, seconds: float) -> bool:
    """True if Ray finds places for all of these within so many seconds; nothing is held."""
    group = placement_group([dict(bundle) for bundle in bundles], strategy=strategy)
    try:
        return group.wait(seconds)
    finally:
        remove_placement_group(group)
