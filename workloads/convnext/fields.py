"""Fields of the configuration as people write them: FIELD=VALUE words, and values in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_type_hints

from workloads.convnext.config import TrainConfig
from workloads.errors import UsageError


def assigned(words: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """The fields that `FIELD=VALUE` words give, each value as its field has it.

    Args:
        words: as they were typed.
        flags: fields that have a flag of their own, and are given by no other.

    Raises:
        UsageError: no such field, a value that it does not take, or one that a flag gives.
    """
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")  # as flags and `--dry-run` write it
        try:
            if not equals:
                raise wrong(word, "is not FIELD=VALUE")
            if name in flags:
                raise wrong(name, f"has a flag of its own, --{name.replace('_', '-')}")
            if name in changes:
                raise wrong(name, "is given twice")
            # A word stays one: YAML would read `none` as it is, but `no` and `1:30` as something else.
            switch = kind(name) is bool and text in ("true", "false")
            [changes[name]] = values(name, [text == "true"] if switch else [text])
        except UsageError as error:
            raise UsageError(f"--set {word}: {error.problem}.", "Write --set FIELD=VALUE.") from error
    return changes


def kind(name: str) -> Any:
    """The type of a field.

    Raises:
        UsageError: there is no such field.
    """
    kinds = get_type_hints(TrainConfig)
    if name not in kinds or name == "recipe":
        nearest = get_close_matches(name, [field for field in kinds if field != "recipe"], n=1, cutoff=0.4)
        hint = f" (did you mean {nearest[0]}?)" if nearest else f"; there are {', '.join(sorted(kinds))}"
        raise wrong(name, f"is not a field of the configuration{hint}")
    return kinds[name]


def values(name: str, options: Sequence[Any]) -> tuple[Any, ...]:
    """The values as the field has them.

    Raises:
        UsageError: no such field, none, one that the field does not take, or one twice.
    """
    wanted = kind(name)
    if not options:
        raise wrong(name, "has no values")
    converted = tuple(_convert(name, wanted, option) for option in options)
    if len(set(converted)) < len(converted):
        raise wrong(name, f"has a value twice in {json.dumps(list(converted))}")
    return converted


def wrong(name: str, problem: str) -> UsageError:
    """The error in a field; the caller knows where it was written."""
    return UsageError(f"{name} {problem}", "")


def _convert(name: str, kind: Any, value: Any) -> Any:
    """The value as the field has it. YAML 1.1 reads `1e-4` as text, since it wants a dot in numbers."""
    if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number) and (kind is float or number.is_integer()):
            return kind(number)
    elif (kind is bool and isinstance(value, bool)) or (kind not in (int, float, bool) and isinstance(value, str)):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a word")
    raise wrong(name, f"has {json.dumps(value, default=str)}; it takes {wanted}")
