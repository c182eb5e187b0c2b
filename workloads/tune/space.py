"""Search spaces: files with values or ranges for fields of TrainConfig, and the trials that they make.

A file is checked against the configuration's own rules, at every listed value and at both ends of every range. Trials
are drawn here and not by Ray Tune, so that all are known, counted and checked before anything starts, and so that the
same file and seed give the same trials again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from workloads.convnext import fields
from workloads.convnext.config import TrainConfig
from workloads.errors import UsageError

MAX_TRIALS = 10_000
"""More are taken for a mistake: the start of each alone costs seconds."""

ATTEMPTS = 1_000
"""Draws after which no trial that differs from all others is expected."""

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings of a space file's name, by which `submit` recognises a file that must travel with the job."""

KINDS = {
    "choice": "any number of values",
    "uniform": "[low, high]",
    "quniform": "[low, high, step]",
    "loguniform": "[low, high], low above 0",
    "randint": "[low, high], high itself excluded",
    "lograndint": "[low, high], low at least 1, high itself excluded",
    "range": "[first, last, step], last included",
}
"""Kinds of ranges and what each takes; where Ray Tune has the name (ray.tune.loguniform), it means the same there."""

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
                f"{', '.join(endless)}: a sweep runs every combination, and a range has no end of values.",
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


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once: of two that are alike, the first one's values would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in lines:
                twice = f"{key.value} stands twice, on line {lines[key.value]} and on line {line}"
                raise yaml.constructor.ConstructorError(problem=twice)
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def read(path: Path) -> Any:
    """The content of a space file.

    Raises:
        UsageError: it cannot be read.
    """
    if path.exists() and path.suffix not in SUFFIXES:
        raise UsageError(f"--space is {path}; its name must end in one of {', '.join(SUFFIXES)}.", "Rename the file.")
    try:
        # What JSON cannot hold, such as a list that holds itself, is no space.
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        return json.loads(json.dumps(content, default=str))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UsageError(f"--space {path} cannot be read: {reason}.", "Name a YAML or JSON file.") from error


def parse(content: Any, base: TrainConfig) -> Space:
    """The space that a file's content describes.

    Args:
        content: a mapping of fields of TrainConfig to a value, a list of values, or `{kind: [...]}` (see `KINDS`).
        base: configuration that the trials change.

    Raises:
        UsageError: naming everything that is wrong at once.
    """
    if not isinstance(content, dict) or not content:
        raise UsageError(
            "the space file names no field.", "Write one per line, as in `learning_rate: {loguniform: [1e-4, 1e-2]}`."
        )
    domains: dict[str, Values | Range] = {}
    problems: list[str] = []
    for name, spec in content.items():
        with _noted(problems):
            domains[name] = _domain(str(name), spec)
    space = Space(domains)
    with _noted(problems):
        # What all trials have comes first: a value may be allowed beside it alone, as `accumulate` is by `batch_size`.
        base = dataclasses.replace(base, **space.fixed)
    for name in space.varied:
        with _noted(problems):
            for value in domains[name].extremes():
                dataclasses.replace(base, **{name: value})
    if problems:
        raise UsageError(f"{'; '.join(problems)}.", "Correct the file that --space names.")
    return space


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        problems.append(error.problem.rstrip("."))


def _domain(name: str, spec: Any) -> Values | Range:
    field = fields.kind(name)
    if not isinstance(spec, dict):
        return Values(fields.values(name, spec if isinstance(spec, list) else [spec]))
    kind, arguments = next(iter(spec.items()), ("", None))
    if len(spec) != 1 or kind not in KINDS:
        nearest = get_close_matches(str(kind), KINDS, n=1, cutoff=0.4)
        hint = f" (did you mean {nearest[0]}?)" if nearest and len(spec) == 1 else f"; there are {', '.join(KINDS)}"
        raise fields.wrong(name, f"has {json.dumps(spec, default=str)} instead of one kind of range{hint}")
    if kind == "choice":
        return Values(fields.values(name, arguments if isinstance(arguments, list) else []))
    return _range(name, kind, field, _numbers(name, kind, arguments))


def _range(name: str, kind: str, field: Any, numbers: list[float]) -> Values | Range:
    low, high = numbers[:2]
    step = numbers[2] if len(numbers) > 2 else 0.0
    if field not in (int, float):
        raise fields.wrong(name, f"is not a number, so {kind} does not fit; list its values")
    if low >= high or (len(numbers) > 2 and not 0 < step <= high - low):
        raise fields.wrong(
            name, f"has {kind} {numbers}; it takes {KINDS[kind]}, low below high and a step between them"
        )
    if kind.startswith("log") and low < (1 if kind == "lograndint" else 5e-324):
        raise fields.wrong(name, f"has {kind} {numbers}; it takes {KINDS[kind]}")
    if kind == "range":
        if (high - low) / step >= MAX_TRIALS:
            raise fields.wrong(name, f"has {kind} {numbers}; at most {MAX_TRIALS:,} values are allowed")
        count = math.floor((high - low) / step + 1e-9) + 1
        return Values(fields.values(name, [round(low + number * step, 12) for number in range(count)]))
    whole = kind.endswith("randint")
    if whole != (field is int):
        fitting = "randint or lograndint" if field is int else "uniform, quniform or loguniform"
        raise fields.wrong(
            name, f"is {'a whole' if field is int else 'not a whole'} number, so it takes {fitting}, not {kind}"
        )
    if whole and not (low.is_integer() and high.is_integer()):
        raise fields.wrong(name, f"has {kind} {numbers}; its ends are whole numbers")
    return Range(low, high, kind.startswith("log"), whole, step)


def _numbers(name: str, kind: str, arguments: Any) -> list[float]:
    expected = KINDS[kind].partition("]")[0].count(",") + 1
    try:
        numbers = [float(argument) for argument in arguments]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != expected or not all(map(math.isfinite, numbers)):
        raise fields.wrong(name, f"has {kind} {json.dumps(arguments, default=str)}; it takes {KINDS[kind]}")
    return numbers


def _spread(options: tuple[Any, ...]) -> float:
    """The largest of some numbers in terms of the smallest; 0 where some are no numbers above 0."""
    numbers = [option for option in options if isinstance(option, int | float) and option > 0]
    return max(numbers) / min(numbers) if len(numbers) == len(options) else 0.0


def _check_count(count: int) -> None:
    if count > MAX_TRIALS:
        raise UsageError(
            f"that makes {count:,} trials; at most {MAX_TRIALS:,} are allowed.", "Name fewer values or samples."
        )
