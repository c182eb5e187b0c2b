"""Reads a stack's settings: `load` for the program, `parse` for the command line, both by the same rules.

`load` takes Pulumi's configuration, `parse` the content of the stack file. A mapping is read into the dataclasses of
`schema` by their own annotations. A wrong field gets its default or an empty placeholder, so that reading continues and
every problem is found at once: the result is used only if there are no problems.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, replace
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import pulumi
from pulumi.runtime import config as runtime_config

from oasis_stack.facts import prices
from oasis_stack.facts.capacity_rules import MAX_RUN_HOURS, MODES_WITH_END
from oasis_stack.facts.prices import PriceTableError
from oasis_stack.facts.problem import UNKNOWN, Problem, SettingsError, config_key
from oasis_stack.settings import cost, rules
from oasis_stack.settings.schema import ItemDefaults, Settings, Sized

_T = TypeVar("_T")

_GO_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}) \S+")


def load() -> Settings:
    """Settings of the stack that Pulumi runs.

    Raises:
        pulumi.RunError: what `parse` finds wrong, or an error in the table of prices. Pulumi shows only its text,
            without a traceback.
    """
    config: dict[str, Any] = runtime_config.get_config_env() | runtime_config.CONFIG.get()
    secret_keys = set(runtime_config.get_config_secret_keys_env())
    values = from_config(config)
    key = "oasis:wandb_api_key"
    if key in config and (key in secret_keys or runtime_config.is_config_secret(key)):
        values["wandb_api_key"] = pulumi.Output.secret(config[key])
    try:
        prices.known()  # the outputs need them
        return parse(values, datetime.now(UTC).date())
    except (SettingsError, PriceTableError) as error:
        raise pulumi.RunError(str(error)) from None


def from_config(config: Mapping[str, object]) -> dict[str, object]:
    """Plain keys from namespaced ones: Pulumi's, with sections as JSON text, or a stack file's, with mappings.

    Namespaces of other providers are not checked; only `gcp:project` is taken from them.
    """
    values: dict[str, object] = {}
    for key, value in config.items():
        namespace, _, name = key.partition(":")
        if key == "gcp:project":
            values["project"] = value
        elif namespace == "oasis":
            values[key if name == "project" else name] = _decoded(value)
    return values


def _decoded(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return _dated(value)


def _dated(value: object) -> object:
    """A value in which each unquoted date becomes a quoted one.

    Pulumi gives such a date in the form of Go's time.String (pulumi/sdk, go/common/resource/config/object.go).
    """
    if isinstance(value, Mapping):
        return {key: _dated(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_dated(below) for below in value]
    if isinstance(value, str) and (found := _GO_TIME.fullmatch(value)):
        moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S %z")
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


def parse(values: Mapping[str, object], today: date | None = None) -> Settings:
    """Settings from keys without a namespace, with nested sections as mappings.

    Args:
        values: `wandb_api_key` must be an Output or the stack file's encrypted form `{secure: ...}`, which is left
            unread.
        today: the day on which the stack is to be made or changed; if the stack has a limit, its price must be known
            for that day. None for actions that cost nothing, such as destroying it.

    Raises:
        SettingsError: everything that is wrong, at once.
    """
    values = dict(values)
    encrypted = values.pop("wandb_api_key", None)
    reader = _Reader(Settings)
    settings = _derived(reader.section(Settings, values, ""))
    if isinstance(encrypted, pulumi.Output):
        settings = replace(settings, wandb_api_key=encrypted)
    refused = reader.meant | {problem.key for problem in reader.problems}
    problems = [*reader.problems, *rules.problems(settings, encrypted, refused)]
    if today is not None and not problems:
        problems += cost.problems(settings, today)
    if problems:
        raise SettingsError(problems)
    return settings


class _Reader:
    """Reads sections. It collects `problems`, and in `meant` the absent keys that are there under a misspelt name."""

    def __init__(self, root: type) -> None:
        self.problems: list[Problem] = []
        self.meant: set[str] = set()
        self._known = tuple(known_keys(root))

    def section(self, cls: type[_T], values: object, key: str, defaults: Mapping[str, object] | None = None) -> _T:
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
                self.meant.discard(_join(key, name))
            elif default is not MISSING:
                read[name] = default
            else:
                read[name] = _stand_in(hints[name])
                if _join(key, name) not in self.meant:
                    init = "run `make init`, or " if name == "project" else ""
                    self._refuse(_join(key, name), None, _describe(hints[name]), f"{init}set it in the stack file")
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
        # Known keys have index 0; the message names the entry that was written.
        here = key.rpartition(".")[0]
        if section:
            near, siblings = ([name.replace(section, here, 1) for name in names] for names in (near, siblings))
        remedy = f"did you mean {config_key(near[0])}?" if near else "remove it; settings without effect are refused"
        self.meant.update(near[:1])
        self._refuse(key, UNKNOWN, f"the keys {', '.join(config_key(known) for known in siblings)}", remedy)

    def _refuse(self, key: str, value: object, allowed: str, remedy: str) -> None:
        self.problems.append(Problem(key=key, value=value, allowed=allowed, remedy=remedy))


def known_keys(cls: type, key: str = "") -> Iterator[str]:
    """Every key below a dataclass, including sections; items of a list have index 0."""
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
    # `Annotated[X, constraint] | None` and `Annotated[X | None, constraint]` both mean X with its constraints.
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


def _derived(settings: Settings) -> Settings:
    # Defaults that follow from another setting.
    ray = settings.ray
    if not ray.image:
        ray = replace(ray, image=f"rayproject/ray:{ray.version}-py312-cu128")
    gpu = settings.gpu
    if gpu is not None:
        capacity = tuple(
            replace(entry, max_run_duration_hours=MAX_RUN_HOURS)
            if entry.mode in MODES_WITH_END and entry.max_run_duration_hours is None
            else entry
            for entry in gpu.capacity
        )
        gpu = replace(gpu, capacity=capacity, compute_class=gpu.compute_class or gpu.machine.accelerator.split("-")[1])
    return replace(settings, ray=ray, gpu=gpu)
