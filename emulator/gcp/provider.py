"""Pulumi's `gcp` provider for the emulated cloud: speaks the provider protocol; the calls are in `resource_calls`.

Run as `python -m emulator.gcp.provider`; it prints its port and serves on loopback until the engine ends it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2

from emulator.gcp import diff as gcp_diff
from emulator.gcp import invokes as gcp_invokes
from emulator.gcp import tables as gcp_tables
from emulator.gcp import types as gcp_types
from emulator.gcp.resource_calls import ResourceCalls
from emulator.gcp.resources.google_client import GoogleClient, Transport, over_http
from emulator.gcp.tables import MissingRowError, row_of
from emulator.google.callers import SERVER, Tokens
from emulator.google.cloud import Cloud, CloudObject
from emulator.google.errors import CloudError, in_googles_words
from emulator.google.scope import Scope
from emulator.machine.state import State
from emulator.protocol.plugin import Provider, any_change, difference, serve_provider
from emulator.protocol.wire import UNKNOWN, Secret, decode, encode, holds_secret, plain

# The provider reads only the labels and annotations that its own configuration gave: none, for an import
# (pulumi/pulumi-gcp issue 3044).
_UNREAD = frozenset({"annotations", "labels", "resourceLabels"})

Context = grpc.ServicerContext


class GcpProvider(Provider):
    """One provider process; the engine starts one per operation."""

    def __init__(self, send: Transport) -> None:
        self._client = GoogleClient(send)
        self._scope = Scope()

    def Handshake(self, request: Any, context: Context) -> provider_pb2.ProviderHandshakeResponse:
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    def GetPluginInfo(self, request: Any, context: Context) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=gcp_types.VERSION)

    def CheckConfig(self, request: Any, context: Context) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Context) -> provider_pb2.DiffResponse:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Context) -> provider_pb2.ConfigureResponse:
        given = plain(decode(request.args))
        self._scope = Scope(**{key: str(given[key]) for key in ("project", "region", "zone") if given.get(key)})
        # The bridge takes values other than text as JSON.
        if given.get("userProjectOverride") in (True, "true"):
            self._client.quota_project = str(given.get("billingProject", ""))
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Check(self, request: Any, context: Context) -> provider_pb2.CheckResponse:
        with _answering(context, request.urn):
            row = row_of(_token(request.urn))
            given, old = decode(request.news), decode(request.olds)
            inputs = {key: value for key, value in given.items() if value is not None and key != gcp_diff.DEFAULTS}
            if row.auto_name and row.auto_name[0] not in inputs:
                field, longest = row.auto_name
                named = field in old and field in old.get(gcp_diff.DEFAULTS, [])
                seed = request.randomSeed or os.urandom(16)
                logical = request.urn.rsplit("::", 1)[-1]
                inputs[field] = old[field] if named else gcp_diff.automatic_name(logical, longest, seed)
                inputs[gcp_diff.DEFAULTS] = [field]
            failures = [
                provider_pb2.CheckFailure(property=problem.path, reason=problem.message)
                for problem in gcp_types.problems(_token(request.urn), _own(inputs))
            ]
            return provider_pb2.CheckResponse(inputs=encode(inputs), failures=failures)

    def Diff(self, request: Any, context: Context) -> provider_pb2.DiffResponse:
        with _answering(context, request.urn):
            row = row_of(_token(request.urn))
            old, new = plain(decode(request.old_inputs)), plain(decode(request.news))
            found = gcp_diff.changes(row, old, new)
            replaced = [change.path for change in found if change.replaces]
            return provider_pb2.DiffResponse(
                changes=any_change(found),
                diffs=sorted({change.path.split(".")[0].split("[")[0] for change in found}),
                replaces=sorted({path.split(".")[0].split("[")[0] for path in replaced}),
                detailedDiff={change.path: difference(change.kind, change.replaces) for change in found},
                hasDetailedDiff=True,
                deleteBeforeReplace=bool(replaced) and _keeps_its_name(row.auto_name, old, new),
            )

    def Create(self, request: Any, context: Context) -> provider_pb2.CreateResponse:
        token, given = _token(request.urn), decode(request.properties)
        inputs = _own(given)
        with _answering(context, request.urn):
            if request.preview:
                return provider_pb2.CreateResponse(properties=encode(_foreseen(token, given)))
            made = self._calls(token).create(inputs)
            return provider_pb2.CreateResponse(id=made.name, properties=encode(_outputs(token, made, given)))

    def Update(self, request: Any, context: Context) -> provider_pb2.UpdateResponse:
        token, given = _token(request.urn), decode(request.news)
        old, new = _own(decode(request.old_inputs)), _own(given)
        with _answering(context, request.urn):
            if request.preview:
                return provider_pb2.UpdateResponse(properties=encode({**decode(request.olds), **given}))
            made = self._calls(token).update(request.id, old, new)
            return provider_pb2.UpdateResponse(properties=encode(_outputs(token, made, given)))

    def Read(self, request: Any, context: Context) -> provider_pb2.ReadResponse:
        token = _token(request.urn)
        with _answering(context, request.urn):
            given = decode(request.inputs)
            taken_over = bool(given) and not request.properties.fields  # inputs of a creation that was cut off
            found = self._calls(token).find(request.id, {} if taken_over else _own(given))
            if found is None:
                return provider_pb2.ReadResponse()
            outputs = _outputs(token, found, given or decode(request.properties))
            if given:
                kept = {*found.body, gcp_diff.DEFAULTS} if taken_over else given
                known = {key: value for key, value in plain(given).items() if key in kept}
                inputs = gcp_diff.drifted(known, found.body, row_of(token).not_computed)
                inputs = {
                    key: Secret(value) if holds_secret(given.get(key)) else value for key, value in inputs.items()
                }
            else:  # an import: every input that the provider reads back
                outputs = {key: value for key, value in outputs.items() if key not in _UNREAD}
                inputs = {key: outputs[key] for key in gcp_types.inputs_of(token) if key in outputs}
            return provider_pb2.ReadResponse(id=found.name, properties=encode(outputs), inputs=encode(inputs))

    def Delete(self, request: Any, context: Context) -> empty_pb2.Empty:
        token = _token(request.urn)
        with _answering(context, request.urn):
            outputs = plain(decode(request.properties))
            self._calls(token).delete(request.id, outputs)
            return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Context) -> provider_pb2.InvokeResponse:
        with _answering(context, request.tok):
            arguments = plain(decode(request.args))
            answer = gcp_invokes.answer(request.tok, arguments, self._client, self._scope)
            response = provider_pb2.InvokeResponse()
            getattr(response, "return").CopyFrom(encode(answer))
            return response

    def _calls(self, token: str) -> ResourceCalls:
        return ResourceCalls(self._client, self._scope, token, row_of(token))


def _own(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Plain inputs, without the bridge's own entry."""
    return {key: value for key, value in plain(inputs).items() if key != gcp_diff.DEFAULTS}


def _token(urn: str) -> str:
    # urn:pulumi:<stack>::<project>::<parent type>$...$<type>::<name>
    return urn.split("::")[2].rsplit("$", 1)[-1]


@contextmanager
def _answering(context: Context, subject: str) -> Iterator[None]:
    """Turn an exception into the error that the engine shows under the resource's name."""
    try:
        yield
    except CloudError as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(in_googles_words(error)))
    except (MissingRowError, gcp_types.UnknownTypeError, gcp_invokes.UnknownFunctionError, ValueError) as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{subject}: {error}")


def _foreseen(token: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs of an object that does not exist yet: what Google computes is unknown."""
    row = row_of(token)
    outputs = {key: value for key, value in given.items() if key != gcp_diff.DEFAULTS and key not in row.hidden}
    for path in (*row.defaults, *gcp_types.outputs_only(token)):
        outputs.setdefault(path.split(".")[0], UNKNOWN)
    return outputs


def _outputs(token: str, found: CloudObject, given: Mapping[str, Any]) -> dict[str, Any]:
    """The object's outputs, secret where the input was secret."""
    known = {*gcp_types.inputs_of(token), *gcp_types.outputs_only(token)} - row_of(token).hidden
    return {
        key: Secret(value) if holds_secret(given.get(key)) else value
        for key, value in found.body.items()
        if key in known
    }


def _keeps_its_name(auto_name: tuple[str, int] | None, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if old and new object cannot exist at once, because the program gave both the same name."""
    if auto_name is None or auto_name[0] in new.get(gcp_diff.DEFAULTS, []):
        return False
    return old.get(auto_name[0]) == new.get(auto_name[0])


if __name__ == "__main__":
    gcp_types.import_ahead(gcp_tables.ROWS)
    state = State.from_environment()
    server = f"http://127.0.0.1:{state.port(SERVER)}"
    serve_provider(GcpProvider(over_http(server, Tokens(Cloud(state.directory)))))
