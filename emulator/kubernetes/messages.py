"""What the Kubernetes provider answers: differences as Pulumi's protocol spells them, and refusals with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

import grpc
from google.protobuf import any_pb2
from pulumi.runtime.proto import provider_pb2, status_pb2

from emulator.kubernetes import objects
from emulator.kubernetes.api import ApiError, Body, KindNotServedError
from emulator.kubernetes.wait import NotReadyError
from emulator.protocol import wire


def abort_unready(context: grpc.ServicerContext, body: Body, error: NotReadyError, manager: str) -> NoReturn:
    """Tell the engine that the object exists though it is not ready, so that the state keeps it."""
    outputs = objects.outputs(error.live, manager)
    detail = provider_pb2.ErrorResourceInitFailed(
        id=objects.identifier(error.live),
        properties=wire.encode(outputs),
        inputs=wire.encode(body),
        reasons=[error.reason],
    )
    packed = any_pb2.Any()
    packed.Pack(detail)
    message = f"{label(body)}: {error.reason}"
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=message, details=[packed])
    # gRPC's rich error model; the grpcio-status package would bring a second google.rpc.Status beside Pulumi's.
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, message)


def advice(error: ApiError | KindNotServedError) -> str:
    """Advice on a refusal, as the end of its sentence; empty where its own words give it."""
    if isinstance(error, KindNotServedError):
        return "; its CustomResourceDefinition is not there (yet)"
    if error.reason == "Conflict":
        return (
            ". Another field manager owns what this program sets: leave the field out of the program, or take it "
            f'with the annotation {objects.PATCH_FORCE}: "true"'
        )
    return ""


def label(body: Body) -> str:
    """Kind and name, for a message."""
    return f"{body.get('kind', 'release')} {body.get('metadata', body).get('name', '')!r}"


def placed(outputs: Body) -> Body:
    """Outputs with the metadata from which an id is made; a release has its name at the top."""
    return (
        outputs if "metadata" in outputs else {"metadata": {"name": outputs["name"], "namespace": outputs["namespace"]}}
    )


def top_level(paths: Iterable[str]) -> list[str]:
    """The inputs that the paths lead into."""
    return sorted({re.split(r"[.\[]", path)[1] for path in paths})
