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
    """The calls for this type."""
    imported: Callable[[str], str] = str
    """Maps the id in an import to the object's id."""
    auto_name: tuple[str, int] | None = None
    """Input that Pulumi fills with a generated name when it is left out, and the name's maximum length."""
    replaces: frozenset[str]
    """Wire paths of inputs whose change replaces the object; "*" stands for all of them."""
    replaces_if: Mapping[str, Callable[[Any, Any], bool]] = field(default_factory=dict)
    """Wire paths whose change replaces the object for some (old, new)."""
    defaults: frozenset[str] = frozenset()
    """Wire paths of inputs that Google fills when they are left out."""
    not_computed: frozenset[str] = frozenset()
    """Wire paths of inputs that are optional and not computed in Terraform's schema: a value that Google sets there
    unasked is a difference after a refresh."""
    hidden: frozenset[str] = frozenset()
    """Write-only inputs, never returned."""


def paths(text: str) -> frozenset[str]:
    """Wire paths from one text, separated by blanks."""
    return frozenset(text.split())
