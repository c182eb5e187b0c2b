"""Whether two sets of times differ by more than they vary: the arithmetic of `bench compare`, on plain numbers.

Everything is in logarithms of times, where a change by a percentage is the same at every size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, median, variance

RUN_SPREAD = 0.01
"""Standard deviation between whole runs on the same machines, where nothing better is known. The same eight H200 gave
473.1 and 477.5 GB/s at 8 GiB, 480.0 and 482.3 at 16 GiB (stas00/ml-engineering, network/README.md)."""

FALSE_ALARM = 0.01
"""Chance that a comparison of two like results reports any difference at all."""

JUDGED = math.log(1.5)
"""Noise in which no difference may be read as none: half of a lost NIC's factor of two, as of `suspects.SLOW_RATIO`.
All-reduce at 216 to 231 GB/s where 470 are due (NVIDIA/nccl 2409) is what a comparison must not pass over."""

_MEDIAN_LOSS = math.pi / 2
"""By how much a median's variance is larger than a mean's."""

_PRIOR_RUNS = 4
"""How many runs' worth of belief `RUN_SPREAD` has against the spread of runs that were repeated."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size in one place, as one side has it."""

    times: tuple[float, ...]
    """Logarithm of the seconds in each of the side's runs."""
    spread: float
    """Standard deviation of a run's time that its own calls show; 0 where they were not timed one by one."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """How much longer the second side takes. Of logarithms: 0.1 is 10.5 % longer."""

    size: float
    noise: float
    """What two like results may differ by."""

    @property
    def share(self) -> float:
        """The change as a share of the first side's time: 0.12 is 12 % longer."""
        return math.expm1(self.size)

    @property
    def real(self) -> bool:
        """Whether it is more than noise."""
        return abs(self.size) > self.noise

    @property
    def hidden(self) -> bool:
        """Whether the noise is so wide that a broken part would not show in it, either."""
        return not self.real and self.noise > JUDGED


def change(before: Sequence[Point], after: Sequence[Point], comparisons: int) -> Change:
    """The typical change over points of one kind, and what of it may be noise.

    Args:
        before: one side's points, at least one.
        after: the other's, in the same order.
        comparisons: how many like this are made together; more of them must each be surer.
    """
    ratios = [mean(new.times) - mean(old.times) for old, new in zip(before, after, strict=True)]
    shown = variance(ratios) if len(ratios) > 1 else 0.0
    # Rows that happen to agree are not surer than their own calls.
    own = sum(mean(one.spread**2 / len(one.times) for one in side) for side in (before, after))
    rows = max(shown, own) * _MEDIAN_LOSS / len(ratios)
    runs = sum(_run_variance(side) for side in (before, after))
    certainty = NormalDist().inv_cdf(1 - FALSE_ALARM / 2 / comparisons)
    noise = math.hypot(_students(certainty, len(ratios) - 1) * math.sqrt(rows), certainty * math.sqrt(runs))
    return Change(size=median(ratios), noise=noise)


def _students(certainty: float, freedom: int) -> float:
    """Student's quantile from the normal one, for a deviation that is itself only estimated from a few values.

    The first terms of its expansion (Abramowitz and Stegun, 26.7.5), within 4 % from 9 degrees of freedom on; of fewer
    it is too small, and of a single size, where there are none, a row's own calls are all there is.
    """
    if freedom < 1:
        return certainty
    z = certainty
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _run_variance(side: Sequence[Point]) -> float:
    """Variance of the mean of a side's runs: of whole runs, each of which moves all its points together."""
    runs = len(side[0].times)
    levels = [mean(point.times[run] for point in side) for run in range(runs)]
    deviations = sum((level - mean(levels)) ** 2 for level in levels)
    return (_PRIOR_RUNS * RUN_SPREAD**2 + deviations) / (_PRIOR_RUNS + runs - 1) / runs
