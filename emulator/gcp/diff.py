"""Names, differences and drift: the parts of a Pulumi provider that only compare property values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.gcp.row import ResourceType
from emulator.protocol.wire import UNKNOWN

DEFAULTS = "__defaults"
"""Input in which Pulumi's bridged providers record the inputs that they filled in themselves."""

# Every key in these is the user's.
_FREE_FORM = frozenset({"annotations", "labels", "metadata", "resourceLabels"})

# Google fills these from the provider's configuration when they are left out.
_SCOPE = frozenset({"project", "region", "location"})


@dataclass(frozen=True)
class Change:
    """One input that differs."""

    path: str
    """Pulumi's property path: `nodeConfig.taints[0].key`."""
    kind: str
    """`add`, `delete` or `update`."""
    replaces: bool
    """Whether the change replaces the object."""


def automatic_name(logical: str, longest: int, seed: bytes) -> str:
    """`<logical>-<7 hexadecimal digits>`, lower case, cut to `longest` (pulumi/pulumi-terraform-bridge, AutoName)."""
    suffix = "-" + hashlib.sha256(seed).hexdigest()[:7]
    return logical.lower().replace("_", "-")[: longest - len(suffix)] + suffix


def changes(row: ResourceType, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Differences between two sets of plain inputs; leaving out an input that Google fills in is no difference."""
    ignorable = row.defaults | _SCOPE
    return [
        Change(path, kind, "*" in row.replaces or _is_below(path, row.replaces) or _replaces_now(row, path, old, new))
        for path, kind in _differences("", _without(old, DEFAULTS), _without(new, DEFAULTS))
        if not (kind == "delete" and _is_below(path, ignorable))
    ]


def drifted(
    inputs: Mapping[str, Any], body: Mapping[str, Any], not_computed: frozenset[str] = frozenset(), above: str = ""
) -> dict[str, Any]:
    """The inputs as the object has them now: those that were given and the `not_computed`, with the body's values."""
    result: dict[str, Any] = {key: now for key, now in body.items() if f"{above}{key}" in not_computed}
    for key, given in inputs.items():
        now = body.get(key)
        if key == DEFAULTS:
            result[key] = given
        elif isinstance(given, Mapping) and isinstance(now, Mapping) and key not in _FREE_FORM:
            result[key] = drifted(given, now, not_computed, f"{above}{key}.")
        elif isinstance(given, list) and isinstance(now, list) and len(given) == len(now):
            result[key] = [
                drifted(one, other, not_computed, f"{above}{key}.")
                if isinstance(one, Mapping) and isinstance(other, Mapping)
                else other
                for one, other in zip(given, now, strict=True)
            ]
        elif now is not None:
            result[key] = now
    return result


def _replaces_now(row: ResourceType, path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    decide = row.replaces_if.get(path)
    return decide is not None and path in old and path in new and decide(old[path], new[path])


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    if _is_empty(old) and _is_empty(new):
        return
    # An added or removed object counts as each of its parts added or removed: only some of them replace.
    before, after = {} if _is_empty(old) else old, {} if _is_empty(new) else new
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({**before, **after}):
            below = f'{path}["{key}"]' if not key.isidentifier() else f"{path}.{key}" if path else key
            yield from _differences(below, before.get(key), after.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}[{index}]", one, other)
    elif old != new or new == UNKNOWN:
        yield path, "add" if _is_empty(old) else "delete" if _is_empty(new) else "update"


def _is_empty(value: Any) -> bool:
    return value is None or value == [] or value == {}


def _is_below(path: str, names: frozenset[str]) -> bool:
    whole = re.sub(r"\[[^\]]*\]", "", path)
    return any(whole == name or whole.startswith(f"{name}.") for name in names)


def _without(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
