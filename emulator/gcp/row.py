"""The shape of a row of `tables`: what the emulated Google knows about one resource type, and how a row is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator.gcp.resources.resource import Client


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """One resource type."""

    resource: Client
    """The calls that it is made of."""
    imported: Callable[[str], str] = str
    """The id of an object that an import names."""
    auto_name: tuple[str, int] | None = None
    """Input that Pulumi fills with a name when it is left out, and the longest name it makes."""
    replaces: frozenset[str]
    """Wire paths of inputs whose change replaces the object; all of them if it holds "*"."""
    replaces_if: Mapping[str, Callable[[Any, Any], bool]] = field(default_factory=dict)
    """Wire paths whose change replaces the object for some (old, new)."""
    defaults: frozenset[str] = frozenset()
    """Wire paths of inputs that Google fills when they are left out."""
    not_computed: frozenset[str] = frozenset()
    """Wire paths of inputs that Terraform's schema has as optional and not as computed: what Google puts there although
    nobody asked is a difference after a refresh."""
    hidden: frozenset[str] = frozenset()
    """Write-only inputs, never given back."""


def paths(text: str) -> frozenset[str]:
    """Wire paths written in one text, with blanks between."""
    return frozenset(text.split())
