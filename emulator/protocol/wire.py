"""Property values as they cross Pulumi's provider protocol: JSON in which secrets and unknowns are marked.

Signatures: pulumi/pulumi, sdk/go/common/resource/sig/sig.go and sdk/go/common/resource/plugin/rpc.go (v3.259.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format, struct_pb2

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Stands for a value that only an update will know."""

_SIGNATURE_KEY = "4dabf18193072939515e22adb298388d"
_SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"


@dataclass(frozen=True)
class Secret:
    """A value that the engine must encrypt."""

    value: Any


def decode(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Python values of a message; secrets become `Secret`, whole numbers become int."""
    return {key: _decoded(value) for key, value in json_format.MessageToDict(struct).items()}


def encode(values: Mapping[str, Any]) -> struct_pb2.Struct:
    """The message for values as `decode` returns them."""
    struct = struct_pb2.Struct()
    json_format.ParseDict({key: _encoded(value) for key, value in values.items()}, struct)
    return struct


def plain(value: Any) -> Any:
    """The value with secrets unwrapped at every depth and nulls, which stand for unset inputs, dropped from maps."""
    match value:
        case Secret(inner):
            return plain(inner)
        case Mapping():
            return {key: plain(item) for key, item in value.items() if item is not None}
        case list():
            return [plain(item) for item in value]
    return value


def holds_secret(value: Any) -> bool:
    """True if the value contains a secret at any depth."""
    match value:
        case Secret():
            return True
        case Mapping():
            return any(map(holds_secret, value.values()))
        case list():
            return any(map(holds_secret, value))
    return False


def _decoded(value: Any) -> Any:
    match value:
        case dict() if value.get(_SIGNATURE_KEY) == _SECRET_SIGNATURE:
            return Secret(_decoded(value.get("value")))
        case dict():
            return {key: _decoded(item) for key, item in value.items()}
        case list():
            return [_decoded(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _encoded(value: Any) -> Any:
    match value:
        case Secret(inner):
            return {_SIGNATURE_KEY: _SECRET_SIGNATURE, "value": _encoded(inner)}
        case Mapping():
            return {key: _encoded(item) for key, item in value.items()}
        case list() | tuple():
            return [_encoded(item) for item in value]
    return value
