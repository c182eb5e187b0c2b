"""Names, places and bodies as GKE reads them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from emulator.google.collection import name_path
from emulator.google.errors import RefusedCall

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def full(reference: str, project: str, collection: str) -> str:
    """The name path of a resource that a field names by URL, path or bare name."""
    path = name_path(reference)
    return path if "/" in path else f"projects/{project}/{collection}/{path}"


def region_of(location: str) -> str:
    """The region of a zone, or the region itself."""
    return location.rsplit("-", 1)[0] if location.count("-") == 2 else location


def zones_of(location: str) -> list[str]:
    """The default zones of nodes: three zones a, b, c, as in most regions."""
    return [location] if location.count("-") == 2 else [f"{location}-{letter}" for letter in "abc"]


def require_name(name: str, what: str) -> None:
    """Refuse a name that GKE does not take. Raises RefusedCall."""
    if not _NAME.fullmatch(name):
        raise bad(
            f"Invalid {what} name {name!r}: lower-case letters, digits and dashes, at most 40, starting with a letter "
            "and not ending with a dash."
        )


def bad(message: str) -> RefusedCall:
    """A refusal of a bad request."""
    return RefusedCall(400, message, "badRequest")


def digest(value: Any) -> str:
    """A short text that changes with a value: fingerprints, versions, etags."""
    text = json.dumps(value, sort_keys=True) if value else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def pruned(value: Any) -> Any:
    """A body without zeros, which are absent in the JSON of Google's messages (protobuf's JSON mapping)."""
    if isinstance(value, Mapping):
        kept = {key: pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (False, "", [])}
    return [pruned(item) for item in value] if isinstance(value, list) else value
