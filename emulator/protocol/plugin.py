"""A plugin of Pulumi's engine as a program: prints its loopback port first, as the engine expects, and serves gRPC."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from concurrent import futures

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

_MESSAGE_LIMIT = 400 * 1024 * 1024
"""Size limit of a message, the same as the engine's (pulumi/pulumi, sdk/go/common/util/rpcutil)."""

_THREADS = 64
"""Concurrent calls: a deletion or a readiness check holds its thread while it waits."""


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """Answers that all providers here share: no secrets wanted (the engine marks outputs itself), no parameters."""

    def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ProviderHandshakeResponse:
        return provider_pb2.ProviderHandshakeResponse()

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        return empty_pb2.Empty()


def any_change(changed: Collection[object]) -> provider_pb2.DiffResponse.DiffChanges.ValueType:
    """The protocol's word for whether anything changed."""
    return provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE


def difference(how: str, replaces: bool) -> provider_pb2.PropertyDiff:
    """One changed input: `add`, `delete` or `update`."""
    kind = f"{how.upper()}_REPLACE" if replaces else how.upper()
    return provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(kind), inputDiff=True)


def serve_provider(provider: Provider) -> None:
    """Serve a provider until the engine ends this process."""
    serve(lambda server: provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server))


def serve(add: Callable[[grpc.Server], None]) -> None:
    """Serve what `add` adds to the server, until the engine ends this process."""
    # The signal with which the engine ends a provider; every run waits at its end for a slow one. A terminal's Ctrl-C
    # does not arrive here, since the engine gives each provider a process group of its own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    limits = [("grpc.max_receive_message_length", _MESSAGE_LIMIT), ("grpc.max_send_message_length", _MESSAGE_LIMIT)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=_THREADS), options=limits)
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()
