"""Talks to the emulated `gcp` provider as the engine does, message by message, without an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from pulumi.runtime.proto import provider_pb2

from emulator.gcp.provider import GcpProvider
from emulator.gcp.resources.google_client import Transport
from emulator.google.cloud import Cloud
from emulator.protocol.wire import decode, encode
from tests.emulator.google import PROJECT, directly


class Failed(Exception):
    """The provider's error, as the engine would show it."""


class InvalidInputs(Exception):
    """Check's complaints, one line each."""


class _Context:
    """As much of a gRPC context as a provider uses."""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Failed(details)


@dataclass
class Held:
    """A resource as the engine holds it between operations."""

    token: str
    id: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class Client:
    """One stack's provider."""

    def __init__(self, cloud: Cloud, send: Transport | None = None, **config: str) -> None:
        self.provider = GcpProvider(send or directly(cloud))
        self._context: Any = _Context()
        self.provider.Configure(
            provider_pb2.ConfigureRequest(args=encode({"project": PROJECT, **config})), self._context
        )

    def check(
        self, token: str, name: str, inputs: Mapping[str, Any], old: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        request = provider_pb2.CheckRequest(urn=_urn(token, name), news=encode(inputs), olds=encode(old or {}))
        answer = self.provider.Check(request, self._context)
        if answer.failures:
            raise InvalidInputs("\n".join(f"{failure.property}: {failure.reason}" for failure in answer.failures))
        return decode(answer.inputs)

    def create(self, token: str, name: str, inputs: Mapping[str, Any], *, preview: bool = False) -> Held:
        return self.create_checked(token, name, self.check(token, name, inputs), preview=preview)

    def create_checked(self, token: str, name: str, checked: dict[str, Any], *, preview: bool = False) -> Held:
        """`create` of inputs that `check` gave."""
        request = provider_pb2.CreateRequest(urn=_urn(token, name), properties=encode(checked), preview=preview)
        answer = self.provider.Create(request, self._context)
        return Held(token, answer.id, checked, decode(answer.properties))

    def diff(self, held: Held, inputs: Mapping[str, Any]) -> provider_pb2.DiffResponse:
        checked = self.check(held.token, "r", inputs, held.inputs)
        return self.provider.Diff(provider_pb2.DiffRequest(**_change(held, checked)), self._context)

    def update(self, held: Held, inputs: Mapping[str, Any]) -> Held:
        checked = self.check(held.token, "r", inputs, held.inputs)
        request = provider_pb2.UpdateRequest(**_change(held, checked))
        return Held(held.token, held.id, checked, decode(self.provider.Update(request, self._context).properties))

    def read(self, token: str, identity: str, held: Held | None = None) -> Held | None:
        request = provider_pb2.ReadRequest(
            id=identity,
            urn=_urn(token, "r"),
            inputs=encode(held.inputs if held else {}),
            properties=encode(held.outputs if held else {}),
        )
        answer = self.provider.Read(request, self._context)
        return Held(token, answer.id, decode(answer.inputs), decode(answer.properties)) if answer.id else None

    def delete(self, held: Held) -> None:
        request = provider_pb2.DeleteRequest(id=held.id, urn=_urn(held.token, "r"), properties=encode(held.outputs))
        self.provider.Delete(request, self._context)

    def invoke(self, token: str, **arguments: str) -> dict[str, Any]:
        answer = self.provider.Invoke(provider_pb2.InvokeRequest(tok=token, args=encode(arguments)), self._context)
        return decode(getattr(answer, "return"))

    def enable(self, *apis: str) -> None:
        """Enable Google APIs by their short names."""
        for api in apis:
            inputs = {"service": f"{api}.googleapis.com", "project": PROJECT}
            self.create("gcp:projects/service:Service", api, inputs)


def _change(held: Held, checked: dict[str, Any]) -> dict[str, Any]:
    """What Diff and Update are asked with."""
    before = {"olds": encode(held.outputs), "old_inputs": encode(held.inputs)}
    return {"id": held.id, "urn": _urn(held.token, "r"), "news": encode(checked), **before}


def _urn(token: str, name: str) -> str:
    return f"urn:pulumi:test::oasis::oasis:index:Part${token}::{name}"
