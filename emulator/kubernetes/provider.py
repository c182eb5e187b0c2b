"""Pulumi provider `kubernetes`: server-side apply with strict field validation to the API server of a kubeconfig.

It stands in for pulumi-kubernetes 4.34 and keeps its rules: nothing is taken by force from another field manager
unless the object's annotation `pulumi.com/patchForce` says so, a preview is a dry run, a deletion ends when the object
is gone.
"""

from __future__ import annotations

import secrets
import threading
import time

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2

from emulator.kubernetes import config as kubernetes_config
from emulator.kubernetes import helm, messages, objects
from emulator.kubernetes.api import Api, ApiError, Body, KindNotServedError, UnreachableError
from emulator.kubernetes.config import ProviderConfig
from emulator.kubernetes.wait import NotReadyError, StillThereError, until_gone, until_ready
from emulator.machine.state import EmulatorError
from emulator.protocol import wire
from emulator.protocol.plugin import Provider, any_change, difference, serve_provider

VERSION = "4.34.2"
"""Version of the SDK that the program imports; the engine asks for the provider of the same version."""

_KIND_SECONDS = 10
"""How long a create waits for its kind to be served: the real provider retries only a handful of times."""

_REFUSALS = (ApiError, KindNotServedError, UnreachableError, EmulatorError, StillThereError, ValueError)


class KubernetesProvider(Provider):
    """One configured provider process."""

    def __init__(self) -> None:
        self._api: Api | None = None
        self._settings = ProviderConfig.read({})
        self._cancelled = threading.Event()

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=VERSION)

    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        found = kubernetes_config.problems(wire.plain(wire.decode(request.news)))
        failures = [provider_pb2.CheckFailure(property=name, reason=reason) for name, reason in found.items()]
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    def DiffConfig(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        old, new = (wire.plain(wire.decode(values)) for values in (request.old_inputs, request.news))
        changed = messages.top_level(objects.changes(old, new))
        before, after = ProviderConfig.read(old).cluster, ProviderConfig.read(new).cluster
        moved = changed if before and after and before != after else []
        return provider_pb2.DiffResponse(changes=any_change(changed), diffs=changed, replaces=moved)

    def Configure(
        self, request: provider_pb2.ConfigureRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConfigureResponse:
        self._settings = ProviderConfig.read(wire.plain(wire.decode(request.args)))
        self._api = Api(self._settings.kubeconfig) if self._settings.kubeconfig else None
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        old, new = wire.plain(wire.decode(request.olds)), wire.plain(wire.decode(request.news))
        if request.type == helm.RELEASE:
            checked, problem = helm.check(new, old, request.name)
            failures = [provider_pb2.CheckFailure(property=problem[0], reason=problem[1])] if problem else []
            return provider_pb2.CheckResponse(inputs=wire.encode(checked), failures=failures)
        checked = objects.named(new, old, request.name)
        api_version, kind = checked.get("apiVersion"), checked.get("kind")
        if not api_version or not kind or kind != objects.type_of(request.type)[1]:
            reason = f"{request.type} with kind {kind!r}: the emulated provider knows neither patches nor lists"
            failure = provider_pb2.CheckFailure(property="kind", reason=reason)
            return provider_pb2.CheckResponse(inputs=wire.encode(checked), failures=[failure])
        if self._api is not None and "namespace" not in checked["metadata"] and self._is_namespaced(api_version, kind):
            checked["metadata"]["namespace"] = self._settings.namespace
        return provider_pb2.CheckResponse(inputs=wire.encode(checked))

    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        old, new = wire.plain(wire.decode(request.old_inputs)), wire.plain(wire.decode(request.news))
        found = objects.changes(old, new)
        if request.type == helm.RELEASE:
            replaces = helm.replacing(found)
        else:
            replaces = objects.replacing(old, new, self._settings.mutable_kinds)
        return provider_pb2.DiffResponse(
            changes=any_change(found),
            diffs=messages.top_level(found),
            replaces=messages.top_level(replaces),
            deleteBeforeReplace=bool(replaces) and objects.same_place(old, new),
            hasDetailedDiff=True,
            detailedDiff={path.lstrip("."): difference(how, path in replaces) for path, how in found.items()},
        )

    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        body = wire.plain(wire.decode(request.properties))
        manager = objects.annotation(body, objects.PATCH_FIELD_MANAGER) or f"pulumi-kubernetes-{secrets.token_hex(4)}"
        outputs = self._write(request, body, manager, request.preview, context)
        identifier = "" if request.preview else objects.identifier(messages.placed(outputs))
        return provider_pb2.CreateResponse(id=identifier, properties=wire.encode(outputs))

    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        body = wire.plain(wire.decode(request.news))
        manager = str(wire.plain(wire.decode(request.olds)).get(objects.FIELD_MANAGER, "pulumi-kubernetes"))
        manager = objects.annotation(body, objects.PATCH_FIELD_MANAGER) or manager
        outputs = self._write(request, body, manager, request.preview, context)
        return provider_pb2.UpdateResponse(properties=wire.encode(outputs))

    def Read(self, request: provider_pb2.ReadRequest, context: grpc.ServicerContext) -> provider_pb2.ReadResponse:
        before, inputs = (wire.plain(wire.decode(values)) for values in (request.properties, request.inputs))
        try:
            if request.type == helm.RELEASE:
                found = helm.read(self._connected(), before)
                live, read = (found, inputs) if found else (None, {})
            else:
                live, read = self._look(request, before, inputs)
        except _REFUSALS as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"reading {request.id}: {error}")
        if live is None:
            return provider_pb2.ReadResponse()
        return provider_pb2.ReadResponse(id=request.id, properties=wire.encode(live), inputs=wire.encode(read))

    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        body = wire.plain(wire.decode(request.properties))
        try:
            if request.type == helm.RELEASE:
                helm.delete(self._connected(), body, request.timeout, self._cancelled.is_set)
            else:
                self._delete(body, request.timeout)
        except UnreachableError as error:
            if not self._settings.delete_unreachable:
                hint = "if the cluster is gone, set PULUMI_K8S_DELETE_UNREACHABLE=true"
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{request.id}: {error}; {hint}")
        except _REFUSALS as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{body.get('kind', 'release')} {request.id}: {error}")
        return empty_pb2.Empty()

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        self._cancelled.set()
        return empty_pb2.Empty()

    def _write(
        self,
        request: provider_pb2.CreateRequest | provider_pb2.UpdateRequest,
        body: Body,
        manager: str,
        preview: bool,
        context: grpc.ServicerContext,
    ) -> Body:
        """Apply an object or install a release; aborts the call with the API server's words."""
        if preview and (self._api is None or wire.holds_unknown(body)):
            return body
        try:
            if request.type == helm.RELEASE:
                return body if preview else helm.apply(self._connected(), body, request.timeout, self._cancelled.is_set)
            live = self._apply(body, manager, preview)
            if not preview:
                live = until_ready(self._connected(), live, request.timeout, self._cancelled.is_set)
            return objects.outputs(live, manager)
        except NotReadyError as error:
            messages.abort_unready(context, body, error, manager)
        except (ApiError, KindNotServedError) as error:
            if preview and (isinstance(error, KindNotServedError) or error.status == 404):
                return body  # its namespace or its kind comes with the same update
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{messages.label(body)}: {error}{messages.advice(error)}")
        except _REFUSALS as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{messages.label(body)}: {error}")

    def _apply(self, body: Body, manager: str, preview: bool) -> Body:
        deadline = time.monotonic() + (0 if preview else _KIND_SECONDS)
        while True:
            try:
                force = objects.is_set(body, objects.PATCH_FORCE)
                return self._connected().apply(body, manager, force=force, dry_run=preview)
            except KindNotServedError:
                if time.monotonic() >= deadline or self._cancelled.is_set():
                    raise
                time.sleep(0.5)

    def _look(self, request: provider_pb2.ReadRequest, before: Body, inputs: Body) -> tuple[Body | None, Body]:
        api_version, kind = objects.type_of(request.type)
        namespace, _, name = request.id.rpartition("/")
        try:
            live = self._connected().get(api_version, kind, name, namespace or None)
        except KindNotServedError:
            live = None
        if live is None:
            return None, {}
        manager = str(before.get(objects.FIELD_MANAGER, "pulumi-kubernetes"))
        read = objects.our_part(inputs, before, live) if inputs else objects.importable(live)
        return objects.outputs(live, manager), read

    def _delete(self, body: Body, timeout: float) -> None:
        api = self._connected()
        policy = objects.annotation(body, objects.DELETION_PROPAGATION).capitalize() or "Foreground"
        try:
            asked = api.delete(body, policy)
        except KindNotServedError:
            return
        if asked and not objects.is_set(body, objects.SKIP_AWAIT):
            until_gone(api, body, timeout, self._cancelled.is_set)

    def _is_namespaced(self, api_version: str, kind: str) -> bool:
        try:
            return self._connected().kind(api_version, kind).namespaced
        except (KindNotServedError, UnreachableError):
            return False

    def _connected(self) -> Api:
        if self._api is None:
            raise UnreachableError("the provider has no kubeconfig")
        return self._api


if __name__ == "__main__":
    serve_provider(KubernetesProvider())
