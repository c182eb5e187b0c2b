"""Search spaces: fields of TrainConfig with values or ranges, and the trials that they make.

Trials are drawn here and not by Ray Tune, so that all are known, counted and checked before anything starts, and so
that the same file and seed give the same trials again.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.errors import UsageError

MAX_TRIALS = 10_000
"""More are taken for a mistake: each costs seconds of start-up alone."""

ATTEMPTS = 1_000
"""Draws before a trial unlike all others counts as not to be found."""

Changes = dict[str, Any]
"""What one trial changes in the base configuration."""


@dataclass(frozen=True)
class Values:
    """A field with listed values."""

    options: tuple[Any, ...]

    def draw(self, chance: random.Random) -> Any:
        """One of them."""
        return chance.choice(self.options)

    def extremes(self) -> tuple[Any, ...]:
        """Every value that has to be allowed."""
        return self.options


@dataclass(frozen=True)
class Range:
    """A field with a range."""

    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False
    """Whole numbers below `high`."""
    step: float = 0.0
    """Draws are rounded to multiples of it; 0 does not round."""

    def draw(self, chance: random.Random) -> Any:
        """A value of the range."""
        low, high = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        value = chance.uniform(low, high)
        value = math.exp(value) if self.logarithmic else value
        if self.whole:
            return min(max(math.floor(value), int(self.low)), int(self.high) - 1)
        if self.step:
            value = round(value / self.step) * self.step
        # Six digits are more than a search can tell apart, and people type them.
        value = float(f"{value:.6g}")
        return min(max(value, self.low), self.high)

    def extremes(self) -> tuple[Any, ...]:
        """Both ends; where they are allowed, so is what lies between."""
        return (int(self.low), int(self.high) - 1) if self.whole else (self.low, self.high)


@dataclass(frozen=True)
class Space:
    """The fields that a search varies, in the file's order."""

    fields: Mapping[str, Values | Range]

    @property
    def varied(self) -> list[str]:
        """Fields with more than one value."""
        return [name for name, domain in self.fields.items() if len(set(domain.extremes())) > 1]

    @property
    def fixed(self) -> Changes:
        """The others, with the value that they have in all trials."""
        return {name: domain.extremes()[0] for name, domain in self.fields.items() if name not in self.varied}

    @property
    def logarithmic(self) -> frozenset[str]:
        """Fields whose values are spread by magnitude: of a logarithmic range, or listed over two decades and more."""
        return frozenset(
            name
            for name, domain in self.fields.items()
            if (domain.logarithmic if isinstance(domain, Range) else _spread(domain.options) >= 100)
        )

    def grid(self) -> list[Changes]:
        """Every combination, the last field changing fastest.

        Raises:
            UsageError: a field has a range, of which there is no list, or there are too many combinations.
        """
        endless = [name for name, domain in self.fields.items() if isinstance(domain, Range)]
        if endless:
            raise UsageError(
                f"{', '.join(endless)}: a sweep runs every combination, and of a range there is no end.",
                "List the values, or write {range: [first, last, step]}; `tune` takes ranges.",
            )
        options = [domain.options for domain in self.fields.values() if isinstance(domain, Values)]
        _check_count(math.prod(len(values) for values in options))
        return [dict(zip(self.fields, values, strict=True)) for values in itertools.product(*options)]

    def sample(self, count: int, seed: int) -> list[Changes]:
        """Trials drawn at random, no two alike; the first ones of a larger count are those of a smaller one.

        Raises:
            UsageError: the space does not have as many.
        """
        _check_count(count)
        trials: list[Changes] = []
        seen: set[str] = set()
        for number in range(count):
            chance = random.Random(f"{seed}/{number}")
            for _ in range(ATTEMPTS):
                # In the order of names, so that the order of the file's lines decides nothing.
                drawn = {name: self.fields[name].draw(chance) for name in sorted(self.fields)}
                trial = {name: drawn[name] for name in self.fields}
                if (key := json.dumps(trial, sort_keys=True)) not in seen:
                    break
            else:
                raise UsageError(
                    f"the space has {number} different trials; {count} were asked for with --samples.",
                    f"Ask for at most {number}, or use `sweep`, which runs all.",
                )
            seen.add(key)
            trials.append(trial)
        return trials


def _spread(options: tuple[Any, ...]) -> float:
    """The largest of some numbers in terms of the smallest; 0 where some are no numbers above 0."""
    numbers = [option for option in options if isinstance(option, int | float) and option > 0]
    return max(numbers) / min(numbers) if len(numbers) == len(options) else 0.0


def _check_count(count: int) -> None:
    if count > MAX_TRIALS:
        raise UsageError(f"that makes {count:,} trials; {MAX_TRIALS:,} are the most.", "Name fewer values or samples.")
