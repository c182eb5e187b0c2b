"""How many workers there are places for at this moment: found out by asking Ray's scheduler, which knows what is busy.

The places are not held. Who asks for them next may find fewer, and then gathers again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ray.util.placement_group import placement_group, remove_placement_group

from workloads import capacity
from workloads.capacity import Bundle, Strategy

SETTLE_SECONDS = 2.0
"""How long places that ended workers held may take to be free again."""

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
    """Wait until there are places for `least` workers at least, and count how many of `most` there are.

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
    if least < most and placeable([bundle] * most, strategy, SETTLE_SECONDS):
        return most
    with capacity.hold([bundle] * least, timeout_seconds, report, strategy):
        pass
    fits, limit = least, most  # `most` itself was tried
    while limit - fits > 1:
        middle = (fits + limit) // 2
        fits, limit = (middle, limit) if placeable([bundle] * middle, strategy, TRY_SECONDS) else (fits, middle)
    return fits


def placeable(bundles: Sequence[Bundle], strategy: Strategy, seconds: float = SETTLE_SECONDS) -> bool:
    """Whether Ray finds places for all of these within so many seconds; nothing is held."""
    group = placement_group([dict(bundle) for bundle in bundles], strategy=strategy)
    try:
        return group.wait(seconds)
    finally:
        remove_placement_group(group)
