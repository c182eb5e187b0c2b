"""Reads a mapping into a frozen dataclass by the dataclass's own annotations, and collects everything wrong with it.

A field that is wrong gets its default or an empty stand-in, so that reading goes on and every problem is found at once:
the result may be used only if there was none.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from oasis_stack.facts.problem import UNKNOWN, Problem, config_key

T = TypeVar("T")


@dataclass(frozen=True)
class Between:
    """A whole number within bounds, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def accepts(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high


@dataclass(frozen=True)
class Matching:
    """Text of a given form."""

    pattern: str | re.Pattern[str]
    meaning: str
    """The form in words, with an example."""

    def __str__(self) -> str:
        return self.meaning

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


@dataclass(frozen=True)
class Sized:
    """A name that ends with a size: `e2-standard-8` is of the family `e2-standard`."""

    families: Mapping[str, Sequence[int]]
    """The sizes of each."""

    def __str__(self) -> str:
        return f"a machine type of {', '.join(self.families)}: {', '.join(self._names(next(iter(self.families))))} ..."

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self._names(value.rpartition("-")[0])

    def allowed(self, value: object) -> str:
        """The names of the value's own family; the families where it is of none."""
        names = self._names(str(value).rpartition("-")[0])
        return f"one of {', '.join(names)}" if names else str(self)

    def _names(self, family: str) -> list[str]:
        return [f"{family}-{size}" for size in self.families.get(family, ())]


@dataclass(frozen=True)
class ItemDefaults:
    """Defaults for the fields of a list's items whose class has none of its own."""

    values: Mapping[str, object]


class Reader:
    """Reads sections; `problems` grows as it does."""

    def __init__(self, root: type) -> None:
        self.problems: list[Problem] = []
        self._known = tuple(known_keys(root))

    def section(self, cls: type[T], values: object, key: str, defaults: Mapping[str, object] | None = None) -> T:
        """A dataclass from a mapping; `key` is empty for the root."""
        if not isinstance(values, Mapping):
            self._refuse(key, values, "a section: keys and values, indented", "see Pulumi.dev.yaml for its keys")
            values = {}
        hints = get_type_hints(cls, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(cast(Any, cls))}
        for name in values:
            if name not in fields:
                self._unknown(_join(key, str(name)))
        read: dict[str, object] = {}
        for name, field in fields.items():
            default = _default(field, defaults or {})
            if values.get(name) is not None:
                read[name] = self._value(hints[name], values[name], _join(key, name), default)
            elif default is MISSING:
                read[name] = _stand_in(hints[name])
                remedy = (
                    "run `make init`, or set it in the stack file" if name == "project" else "set it in the stack file"
                )
                self._refuse(_join(key, name), None, _describe(hints[name]), remedy)
            else:
                read[name] = default
        return cls(**read)

    def _value(self, hint: Any, value: object, key: str, default: object) -> object:
        hint, constraints = _unwrap(hint)
        if dataclasses.is_dataclass(hint):
            return self.section(cast(type, hint), value, key)
        if get_origin(hint) is tuple:
            return self._items(get_args(hint)[0], value, key, constraints)
        if get_origin(hint) is dict:
            if isinstance(value, Mapping) and all(isinstance(item, str) for pair in value.items() for item in pair):
                return dict(value)
        elif get_origin(hint) is Literal:
            if value in get_args(hint):
                return value
        elif type(value) is hint and all(constraint.accepts(value) for constraint in constraints):
            return value
        self._refuse(key, value, _describe(hint, constraints, value), "correct it in the stack file")
        return _stand_in(hint) if default is MISSING else default

    def _items(self, item: type, value: object, key: str, constraints: tuple[Any, ...]) -> tuple[object, ...]:
        if not isinstance(value, list | tuple):
            self._refuse(key, value, "a list", "write each entry on a line of its own, behind a dash")
            return ()
        if not dataclasses.is_dataclass(item):
            return tuple(self._value(item, entry, f"{key}[{index}]", MISSING) for index, entry in enumerate(value))
        defaults = next((known.values for known in constraints if isinstance(known, ItemDefaults)), None)
        return tuple(self.section(item, entry, f"{key}[{index}]", defaults) for index, entry in enumerate(value))

    def _unknown(self, key: str) -> None:
        plain = re.sub(r"\[\d+\]", "[0]", key)
        near = difflib.get_close_matches(plain, self._known, n=1, cutoff=0.75)
        last = plain.rsplit(".", 1)[-1].rsplit(":", 1)[-1]
        near = near or [known for known in self._known if known.rsplit(".", 1)[-1] == last]
        section = plain.rpartition(".")[0]
        siblings = [known for known in self._known if known.rpartition(".")[0] == section]
        remedy = f"did you mean {config_key(near[0])}?" if near else "remove it; a setting without effect is not kept"
        self._refuse(key, UNKNOWN, f"the keys {', '.join(config_key(known) for known in siblings)}", remedy)

    def _refuse(self, key: str, value: object, allowed: str, remedy: str) -> None:
        self.problems.append(Problem(key=key, value=value, allowed=allowed, remedy=remedy))


def known_keys(cls: type, key: str = "") -> Iterator[str]:
    """Every key below a dataclass, sections included; items of a list stand at index 0."""
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cast(Any, cls)):
        hint, _ = _unwrap(hints[field.name])
        path = _join(key, field.name)
        yield path
        if get_origin(hint) is tuple:
            hint, path = get_args(hint)[0], f"{path}[0]"
        if dataclasses.is_dataclass(hint):
            yield from known_keys(cast(type, hint), path)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _default(field: dataclasses.Field[Any], more: Mapping[str, object]) -> object:
    if field.name in more:
        return more[field.name]
    return field.default if field.default_factory is MISSING else field.default_factory()


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    # `Annotated[X, constraint] | None` and `Annotated[X | None, constraint]` are both X with its constraints.
    constraints: tuple[Any, ...] = ()
    while True:
        if get_origin(hint) is Annotated:
            hint, *found = get_args(hint)
            constraints += tuple(found)
        elif get_origin(hint) in (Union, types.UnionType):
            hint = next(arm for arm in get_args(hint) if arm is not type(None))
        else:
            return hint, constraints


def _describe(hint: Any, constraints: tuple[Any, ...] = (), value: object = None) -> str:
    hint, found = _unwrap(hint)
    known = [one for one in (*found, *constraints) if not isinstance(one, ItemDefaults)]
    words = [one.allowed(value) if isinstance(one, Sized) else str(one) for one in known]
    if words:
        return " and ".join(words)
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return "a list"
    plain = {bool: "true or false", int: "a whole number", str: "text (in quotes, if it looks like a number or a date)"}
    return plain.get(hint, "a section: keys and values, indented")


def _stand_in(hint: Any) -> Any:
    hint, _ = _unwrap(hint)
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    return () if get_origin(hint) is tuple else hint() if hint in (str, int, bool) else None
