"""The shape of a row of `tables`: what the emulated Google knows about one resource type, and how a row is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator.google.cloud import Relation

COMPUTE_URL = "https://www.googleapis.com/compute/v1/"


@dataclass(frozen=True, kw_only=True)
class Made:
    """Facts that are known of an object when its outputs are computed."""

    name: str
    """Its name path, which is Pulumi's id."""
    body: Mapping[str, Any]
    """Its inputs and the outputs computed so far."""
    project: str
    """Id of its project."""
    number: str
    """Number of its project."""
    created: str
    """RFC 3339 time of its creation."""
    control_plane: Mapping[str, Any]
    """The local API server that stands for GKE's: `endpoint` and `ca`; empty while there is none."""

    def digits(self, count: int, salt: str = "") -> str:
        """Digits that are this object's own and do not change."""
        digest = hashlib.sha256(f"{self.name}{salt}".encode()).hexdigest()
        return str(int(digest, 16))[:count]

    def text(self, template: str) -> str:
        """The template with `{name}`, `{project}`, `{number}`, `{created}`, `{id}` and the body's fields filled in."""
        own = {"id": self.name, "project": self.project, "number": self.number, "created": self.created}
        return fill(template, {**self.body, **own})


Value = str | bool | int | None | list[Any] | Mapping[str, Any] | Callable[[Made], Any]
"""A constant, a template (a str), or a function of what is known."""


@dataclass(frozen=True, kw_only=True)
class Edge:
    """An input that names another object."""

    path: str
    """Wire path of the input; a list on the way means each of its items."""
    kind: str
    """Kind of the object it names."""
    relation: Relation | None = "blocks"
    """What it means for deletion; None: the other must exist at first, and may go later."""


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """One resource type."""

    source: str
    """Title of the public page the row was read from."""
    kind: str
    """Kind of its objects in `Cloud`."""
    api: str
    """Google API that must be enabled in the project."""
    identity: str
    """Template of the name path. `{x:last}` is the last segment of field x."""
    auto_name: tuple[str, int] | None = None
    """Input that Pulumi fills with a name when it is left out, and the longest name it makes."""
    replaces: frozenset[str]
    """Wire paths of inputs whose change replaces the object; all of them if it holds "*"."""
    replaces_if: Mapping[str, Callable[[Any, Any], bool]] = field(default_factory=dict)
    """Wire paths whose change replaces the object for some (old, new)."""
    edges: tuple[Edge, ...] = ()
    """Inputs that name other objects."""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    """Wire paths of inputs that Google fills when they are left out."""
    computed: Mapping[str, Value] = field(default_factory=dict)
    """Every output that no input sets."""
    hidden: frozenset[str] = frozenset()
    """Write-only inputs, never given back."""
    shared: bool = False
    """Making it again is no error: a grant, an enabled API."""
    stays: bool = False
    """Deleting it leaves it: an API that is never disabled."""


class _Text(str):
    def __format__(self, spec: str) -> str:
        return self.rsplit("/", 1)[-1] if spec == "last" else str(self)


def paths(text: str) -> frozenset[str]:
    """Wire paths written in one text, with blanks between."""
    return frozenset(text.split())


def attributed_labels(made: Made, given: str = "labels") -> dict[str, str]:
    """Labels with the one that pulumi-gcp adds by default (its installation page, `addPulumiAttributionLabel`)."""
    return {**made.body.get(given, {}), "goog-pulumi-provisioned": "true"}


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """Fill a template. Raises KeyError for a field that is not there."""
    return template.format_map(
        {key: _Text(value) if isinstance(value, str) else value for key, value in fields.items()}
    )


def completed(row: ResourceType, made: Made) -> dict[str, Any]:
    """The body of a new object: its inputs, what Google fills in, and its outputs."""
    body = _copied(made.body)
    for path, value in {**row.defaults, **row.computed}.items():
        *parents, last = path.split(".")
        at: Any = body
        for parent in parents:
            at = at.setdefault(parent, {})
        if last not in at:
            given = value(made) if callable(value) else made.text(value) if isinstance(value, str) else _copied(value)
            at[last] = given
    return body


def at_path(body: Any, path: str) -> Iterator[Any]:
    """Values at a wire path, lists on the way opened."""
    if isinstance(body, list):
        for item in body:
            yield from at_path(item, path)
    elif not path:
        yield body
    elif isinstance(body, Mapping):
        key, _, rest = path.partition(".")
        if body.get(key) is not None:
            yield from at_path(body[key], rest)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
