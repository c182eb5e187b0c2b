"""Input names and types of pulumi-gcp's resources, read from the SDK's own classes: its schema is not in the package.

`pulumi._types` and the resource registry are private to the SDK; a test pins what is used of them here.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from typing import Any, get_args, get_origin

from pulumi import _types
from pulumi.runtime import rpc

from emulator.protocol.wire import UNKNOWN

_importing: dict[str, threading.Lock] = {}  # by package
importlib.import_module("pulumi_gcp")  # registers the resource modules

VERSION = version("pulumi-gcp")
"""Version of the SDK, which the engine asks the provider for."""


class UnknownTypeError(Exception):
    """The SDK has no resource type with that token."""


@dataclass(frozen=True)
class InputProblem:
    """An input that Google's provider would refuse."""

    path: str
    """Wire path of the input: `networkConfig.peeredNetwork`, `allows[0].protocol`."""
    message: str
    """What is wrong, what is allowed."""


@cache
def inputs_of(token: str) -> Mapping[str, Any]:
    """Wire names and Python types of a resource type's inputs. Raises UnknownTypeError."""
    return _types.input_type_types(_arguments_class(token))


@cache
def outputs_only(token: str) -> frozenset[str]:
    """Wire names of the outputs that no input sets. Raises UnknownTypeError."""
    return frozenset(_types.resource_types(_resource_class(token))) - frozenset(inputs_of(token))


def has_input(token: str, path: str) -> bool:
    """True if a wire path, without list indices, names an input of a type. Raises UnknownTypeError."""
    expected: Any = _arguments_class(token)
    for segment in path.split("."):
        if not _types.is_input_type(expected) or segment not in (types := _types.input_type_types(expected)):
            return False
        expected = _types.unwrap_type(types[segment])
        while get_origin(expected) is collections.abc.Sequence:
            (item_type,) = get_args(expected)
            expected = _types.unwrap_type(item_type)
    return True


def tokens() -> list[str]:
    """Tokens of every resource type of the SDK."""
    registered = [
        module for name, modules in rpc._RESOURCE_MODULES.items() if name.startswith("gcp:") for module in modules
    ]
    return [token for module in registered for token in vars(module)["mod_info"]["classes"]]


def import_ahead(tokens: Iterable[str]) -> threading.Thread:
    """Import the packages of these types in the background: each takes seconds."""
    thread = threading.Thread(target=lambda: [_resource_class(token) for token in tokens], daemon=True)
    thread.start()
    return thread


def problems(token: str, inputs: Mapping[str, Any]) -> list[InputProblem]:
    """Everything in plain inputs that the type does not accept. Raises UnknownTypeError."""
    return list(_in_object("", inputs, _arguments_class(token)))


def _resource_class(token: str) -> type:
    module_name, _, class_name = token.rpartition(":")
    registered = rpc._RESOURCE_MODULES.get(module_name)
    if not registered:
        raise UnknownTypeError(f"pulumi_gcp {VERSION} has no resource type {token!r}")
    info = vars(registered[0])["mod_info"]
    package = info["fqn"]
    # The SDK's packages fill themselves in on first access, which two threads must not do at once.
    with _importing.setdefault(package, threading.Lock()):
        return getattr(importlib.import_module(package), info["classes"].get(token, class_name))


def _arguments_class(token: str) -> type:
    resource = _resource_class(token)
    return getattr(importlib.import_module(resource.__module__), f"{resource.__name__}Args")


def _in_object(path: str, value: Mapping[str, Any], arguments: type) -> Sequence[InputProblem]:
    types = _types.input_type_types(arguments)
    names = _types.input_type_py_to_pulumi_names(arguments)
    parameters = inspect.signature(arguments).parameters
    required = {names[name] for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    found: list[InputProblem] = []
    for missing in sorted(required - value.keys()):
        found.append(
            InputProblem(f"{path}{missing}", f'Missing required argument: the argument "{missing}" is required')
        )
    for key, item in value.items():
        if key in types:
            found += _in_value(f"{path}{key}", item, types[key])
        else:
            close = get_close_matches(key, types, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(sorted(types))}"
            found.append(InputProblem(f"{path}{key}", f"Unsupported argument {key!r}{hint}"))
    return found


def _in_value(path: str, value: Any, expected: Any) -> Sequence[InputProblem]:
    if value == UNKNOWN:
        return []
    expected = _types.unwrap_type(expected)
    origin = get_origin(expected)
    if origin is collections.abc.Sequence:
        if not isinstance(value, list):
            return [_mismatch(path, "a list", value)]
        (item_type,) = get_args(expected)
        return [problem for i, item in enumerate(value) for problem in _in_value(f"{path}[{i}]", item, item_type)]
    if origin is collections.abc.Mapping:
        if not isinstance(value, Mapping):
            return [_mismatch(path, "a map", value)]
        item_type = get_args(expected)[1]
        return [problem for key, item in value.items() for problem in _in_value(f"{path}.{key}", item, item_type)]
    if _types.is_input_type(expected):
        if not isinstance(value, Mapping):
            return [_mismatch(path, "an object", value)]
        return _in_object(f"{path}.", value, expected)
    allowed = {bool: bool, int: int, float: (int, float), str: str}.get(expected)
    if allowed and (not isinstance(value, allowed) or (expected is not bool and isinstance(value, bool))):
        return [_mismatch(path, expected.__name__, value)]
    return []


def _mismatch(path: str, expected: str, value: Any) -> InputProblem:
    return InputProblem(path, f"Incorrect value type: {expected} is expected, {value!r} was given")
