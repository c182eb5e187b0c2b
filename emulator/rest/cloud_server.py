"""A standing process that serves Google's REST APIs, the metadata server's and the local stack's Helm repository on
loopback.

Run as `python -m emulator.rest.cloud_server`; `start` does that and waits, `environment` says how clients find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from email.utils import formatdate
from io import BufferedReader, RawIOBase
from typing import Any, BinaryIO, cast

import anyio
import starlette.requests
import starlette.responses
import starlette.routing
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.google.callers import SERVER, Tokens
from emulator.google.cloud import Cloud
from emulator.google.errors import CloudError, RefusedCall, in_googles_words
from emulator.google.http_message import Request, Response, as_error
from emulator.machine.loopback import answers, past_proxies
from emulator.machine.state import EmulatorError, State
from emulator.rest import charts
from emulator.rest.google_apis import GoogleRest
from emulator.rest.metadata import MetadataServer
from emulator.rest.storage_api import StorageApi

NAME = SERVER

ADDRESSES = ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
"""Variables of Google's own clients and of pyarrow's that name the server."""

_START_SECONDS = 120.0
_OVERRIDES = {
    "ARTIFACTREGISTRY": "",
    "BILLINGBUDGETS": "",
    "CLOUDBILLING": "",
    "CLOUDBUILD": "",
    "CLOUDKMS": "",
    "CLOUDQUOTAS": "",
    "CLOUDRESOURCEMANAGER": "",
    "COMPUTE": "compute/v1/",
    "CONTAINER": "",
    "IAM": "",
    "MONITORING": "",
    "ORGPOLICY": "",
    "SECRETMANAGER": "",
    "SERVICEUSAGE": "",
    "STORAGE": "storage/v1/",
}
"""gcloud's variable for each API's address, and the path of the address (`gcloud config`, api_endpoint_overrides)."""

_CHUNK = 1 << 20

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

_THREADS = 256
"""Requests that are answered at the same time; Starlette's own limit is 40, and a stalled upload holds one."""


Api = Callable[[Request], Response | None]


class CloudServer:
    """The HTTP server: Starlette on uvicorn, which answers each request in a thread."""

    def __init__(self, cloud: Cloud, port: int) -> None:
        self._cloud = cloud
        self.apis = apis_of(cloud)
        self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        # Connections inherit this option. asyncio sets it only on sockets that name their protocol, and without it the
        # second part of an answer waits 40 ms for the client to acknowledge the first.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server_address = self._socket.getsockname()
        routes = [starlette.routing.Route("/{path:path}", self._answer, methods=_METHODS)]
        app = Starlette(routes=routes, lifespan=_many_threads, exception_handlers={ConnectionError: _hung_up})
        # A hanging request must not keep the server from ending. Clients close idle connections: if the server closed
        # one just as a client reused it, the client would see a reset.
        settings = uvicorn.Config(
            _until_the_end(app),
            http="h11",
            log_level="warning",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=24 * 3600,
            date_header=False,
        )
        self._server = uvicorn.Server(settings)

    def serve_forever(self) -> None:
        """Serve until `shutdown`."""
        self._server.run(sockets=[self._socket])

    def shutdown(self) -> None:
        """End `serve_forever`."""
        self._server.should_exit = True

    def _answer(self, given: starlette.requests.Request) -> starlette.responses.Response:
        request = Request(
            method="GET" if given.method == "HEAD" else given.method,
            path=given.scope["raw_path"].decode(),
            query=dict(given.query_params),
            headers=given.headers,
            body=cast(BinaryIO, BufferedReader(_Body(given))),
            host=given.headers.get("Host", ""),
        )
        found = answer(self.apis, request)
        if found.status >= 400:  # successes show in the buckets
            print(f"{time.strftime('%H:%M:%S')} {given.method} {given.url} {found.status}", flush=True)
        headers = {"Date": formatdate(self._cloud.now(), usegmt=True), **found.headers}
        if found.stream is None:
            return starlette.responses.Response(found.body, found.status, headers)
        return starlette.responses.StreamingResponse(_sent(found), found.status, headers)


def apis_of(cloud: Cloud) -> tuple[Api, ...]:
    """Everything that is served, in the order in which it is asked."""
    tokens = Tokens(cloud)
    apis = (
        StorageApi(cloud),
        MetadataServer(cloud, tokens),
        charts.ChartRepository(State(cloud.directory)),
        GoogleRest(cloud, tokens),
    )
    return tuple(api.answer for api in apis)


def answer(apis: Iterable[Api], request: Request) -> Response:
    """The answer of the first API that has one."""
    try:
        for api in apis:
            response = api(request)
            if response is not None:
                return response
        message = f"The emulated Google has no {request.method} {request.path}"
        return as_error(RefusedCall(404, message, "notFound"))
    except CloudError as error:
        return as_error(in_googles_words(error))


def _until_the_end(app: ASGIApp) -> ASGIApp:
    """The app without tracebacks of requests that the server's end cuts off: these are no errors in the code."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return answered


@contextlib.asynccontextmanager
async def _many_threads(app: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield


def _hung_up(request: starlette.requests.Request, error: Exception) -> starlette.responses.Response:
    """An answer that nobody reads: the client has left in the middle of its body."""
    return starlette.responses.Response(status_code=400)


def _sent(response: Response) -> Iterator[bytes]:
    left = int(response.headers["Content-Length"])
    with cast(BinaryIO, response.stream) as stream:
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            yield chunk
            left -= len(chunk)


class _Body(RawIOBase):
    """A request's body, read by the thread that answers it as it arrives."""

    def __init__(self, request: starlette.requests.Request) -> None:
        self._parts, self._part = request.stream(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self._part:
                self._part = anyio.from_thread.run(self._parts.__anext__)
        except StopAsyncIteration:
            return 0
        except starlette.requests.ClientDisconnect:
            raise ConnectionError("the client closed the connection in the middle of a body") from None
        taken = self._part[: len(buffer)]
        buffer[: len(taken)] = taken
        self._part = self._part[len(taken) :]
        return len(taken)


def spawn(state: State) -> None:
    """Start the server unless it runs; `start` also waits for it."""
    state.spawn_module(NAME, "emulator.rest.cloud_server")


def start(state: State) -> None:
    """Start the server unless it runs, and wait until it answers. Raises EmulatorError."""
    spawn(state)
    deadline = time.monotonic() + _START_SECONDS
    while not answers(f"http://127.0.0.1:{state.port(NAME)}/"):
        if state.process(NAME) is None or time.monotonic() > deadline:
            raise EmulatorError(f"the emulated Google does not answer; see {state.log(NAME)}")
        time.sleep(0.05)


def charts_address(state: State) -> str:
    """Address of the Helm repository."""
    return f"http://127.0.0.1:{state.port(NAME)}{charts.PATH}"


def environment(state: State) -> dict[str, str]:
    """Variables that direct Google's client libraries and gcloud's overrides here, and nowhere else."""
    host = f"127.0.0.1:{state.port(NAME)}"
    empty = state.path("gcloud")
    empty.mkdir(exist_ok=True)
    return {
        **dict.fromkeys(ADDRESSES, f"http://{host}"),
        "GCE_METADATA_HOST": host,
        "GCE_METADATA_IP": host,
        "GCE_METADATA_ROOT": host,
        "NO_GCE_CHECK": "false",
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"http://{host}/{path}" for api, path in _OVERRIDES.items()},
        # The user's own Google credentials must never come here.
        "CLOUDSDK_CONFIG": str(empty),
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        **past_proxies(),
    }


def main() -> None:
    """Serve until the process is told to end."""
    state = State.from_environment()
    CloudServer(Cloud(state.directory), state.port(NAME)).serve_forever()


if __name__ == "__main__":
    main()
