"""Search spaces as people write them: a file of fields with values or ranges.

Everything is checked against the configuration's own rules, at every listed value and at both ends of every range.
"""

from __future__ import annotations

import dataclasses
import json
import math
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from workloads.convnext import fields
from workloads.convnext.config import TrainConfig
from workloads.errors import UsageError
from workloads.tune.space import Range, Space, Values

SUFFIXES = (".yaml", ".yml", ".json")
"""A space file's name ends in one of these, by which `submit` knows that the file has to travel with the job."""

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


def read(path: Path) -> Any:
    """The content of a space file.

    Raises:
        UsageError: it cannot be read.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--space is {path}; its name must end in one of {', '.join(SUFFIXES)}.", "Rename the file.")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
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
    problems = []
    for name, spec in content.items():
        try:
            domains[name] = _domain(str(name), spec)
            for value in domains[name].extremes():
                dataclasses.replace(base, **{name: value})
        except UsageError as error:
            problems.append(error.problem.rstrip("."))
    if problems:
        raise UsageError(f"{'; '.join(problems)}.", "Correct the file that --space names.")
    return Space(domains)


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
        raise fields.wrong(name, f"is no number, so {kind} does not fit; list its values")
    if low >= high or (len(numbers) > 2 and not 0 < step <= high - low):
        raise fields.wrong(
            name, f"has {kind} {numbers}; it takes {KINDS[kind]}, low below high and a step between them"
        )
    if kind.startswith("log") and low < (1 if kind == "lograndint" else 5e-324):
        raise fields.wrong(name, f"has {kind} {numbers}; it takes {KINDS[kind]}")
    if kind == "range":
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
