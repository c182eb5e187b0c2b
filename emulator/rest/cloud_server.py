"""One standing process that answers Google's REST APIs on loopback: storage, metadata, Secret Manager, compute's lists;
and the Helm repository of the local stack.

Run as `python -m emulator.rest.cloud_server`; `start` does it and waits, `environment` says how clients find it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl, urlsplit

from emulator.google.cloud import Cloud
from emulator.google.errors import CloudError
from emulator.google.http_errors import RefusedCall, in_googles_words
from emulator.machine.state import CHECKOUT, EmulatorError, State, write_atomically
from emulator.rest import charts
from emulator.rest.api_probes import ApiProbes
from emulator.rest.compute import ComputeApi
from emulator.rest.http_message import Request, Response, as_error
from emulator.rest.metadata import MetadataServer, Tokens
from emulator.rest.secrets_api import SecretsApi
from emulator.rest.storage_api import StorageApi

NAME = "cloud-server"
"""Name of the process, of its port and of its log."""

ADDRESSES = ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
"""Variables of Google's own clients and of pyarrow's that name the server."""

_START_SECONDS = 120.0
_OVERRIDES = {
    "ARTIFACTREGISTRY": "",
    "CLOUDBUILD": "",
    "CLOUDRESOURCEMANAGER": "",
    "COMPUTE": "compute/v1/",
    "CONTAINER": "",
    "IAM": "",
    "SECRETMANAGER": "",
    "SERVICEUSAGE": "",
    "STORAGE": "storage/v1/",
}
"""gcloud's variable for each API's address, and what the address ends in (`gcloud config`, api_endpoint_overrides)."""

_CHUNK = 1 << 20


class CloudServer(ThreadingHTTPServer):
    """The HTTP server; one thread per connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, cloud: Cloud, port: int) -> None:
        tokens = Tokens(cloud)
        apis = (
            ApiProbes(cloud, tokens),
            StorageApi(cloud),
            MetadataServer(cloud, tokens),
            SecretsApi(cloud, tokens),
            ComputeApi(cloud, tokens),
            charts.ChartRepository(),
        )
        self.apis: tuple[Callable[[Request], Response | None], ...] = tuple(api.answer for api in apis)
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True  # else each small answer waits for the client's delayed acknowledgement

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()  # else the client waits a second for it before it sends its body
        return going_on

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        if int(code) >= 400:  # what went well is in the buckets
            super().log_request(code, size)

    def log_message(self, format: str, *args: Any) -> None:
        print(f"{time.strftime('%H:%M:%S')} {format % args}", flush=True)

    def __getattr__(self, name: str) -> Any:
        # http.server looks for do_GET, do_POST, ...: all of them are answered alike.
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        address = urlsplit(self.path)
        body = _Body(self.rfile, self.headers.get("Content-Length"), self.headers.get("Transfer-Encoding", ""))
        request = Request(
            method="GET" if self.command == "HEAD" else self.command,
            path=address.path,
            query=dict(parse_qsl(address.query, keep_blank_values=True)),
            headers=self.headers,
            body=cast(BinaryIO, body),
            host=self.headers.get("Host", ""),
        )
        self._send(self._answer_of(request), with_body=self.command != "HEAD")
        if not body.drain():
            self.close_connection = True

    def _answer_of(self, request: Request) -> Response:
        try:
            for api in cast(CloudServer, self.server).apis:
                response = api(request)
                if response is not None:
                    return response
            message = f"The emulated Google has no {request.method} {request.path}"
            return as_error(RefusedCall(404, message, "notFound"))
        except CloudError as error:
            return as_error(in_googles_words(error))

    def _send(self, response: Response, *, with_body: bool) -> None:
        self.send_response(response.status)
        headers = {"Content-Length": str(len(response.body)), **response.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        left = int(headers["Content-Length"])
        if with_body and response.body:
            self.wfile.write(response.body)
        if response.stream is not None:
            with response.stream as stream:
                while with_body and left > 0 and (chunk := stream.read(min(_CHUNK, left))):
                    self.wfile.write(chunk)
                    left -= len(chunk)


class _Body(BufferedIOBase):
    """A request's body without its transfer encoding."""

    def __init__(self, source: BinaryIO | BufferedIOBase, length: str | None, encoding: str) -> None:
        self._source = source
        self._chunked = "chunked" in encoding.lower()
        self._left = int(length or 0)
        self._ended = not self._chunked and self._left == 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = None if size is None or size < 0 else size
        parts: list[bytes] = []
        while not self._ended and wanted != 0:
            part = self._next(_CHUNK if wanted is None else min(wanted, _CHUNK))
            parts.append(part)
            wanted = None if wanted is None else wanted - len(part)
        return b"".join(parts)

    def drain(self) -> bool:
        """Read on to the end, up to a limit, so that the connection can be used again; whether the end was reached."""
        self.read(64 * _CHUNK)
        return self._ended

    def _next(self, most: int) -> bytes:
        if self._chunked and self._left == 0:
            self._left = int(self._source.readline().split(b";")[0].strip() or b"0", 16)
            if self._left == 0:
                while self._source.readline().strip():  # trailers
                    pass
                self._ended = True
                return b""
        part = self._source.read(min(most, self._left))
        if not part:
            raise ConnectionError("the client closed the connection in the middle of a body")
        self._left -= len(part)
        if self._left == 0:
            if self._chunked:
                self._source.readline()
            else:
                self._ended = True
        return part


def spawn(state: State) -> None:
    """Start the server unless it runs; `start` also waits for it."""
    if state.process(NAME) is None:
        command = [sys.executable, "-u", "-m", "emulator.rest.cloud_server"]
        state.spawn(NAME, command, env={"PYTHONPATH": str(CHECKOUT)})


def start(state: State) -> None:
    """Start the server unless it runs, and wait until it answers. Raises EmulatorError."""
    spawn(state)
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(state.port(NAME)):
        if state.process(NAME) is None or time.monotonic() > deadline:
            raise EmulatorError(f"the emulated Google does not answer; see {state.log(NAME)}")
        time.sleep(0.05)


def charts_address(state: State) -> str:
    """Address of the Helm repository."""
    return f"http://127.0.0.1:{state.port(NAME)}{charts.PATH}"


def environment(state: State) -> dict[str, str]:
    """Variables under which Google's client libraries and gcloud's own overrides lead here, and nowhere else."""
    host = f"127.0.0.1:{state.port(NAME)}"
    empty = state.path("gcloud")
    empty.mkdir(exist_ok=True)
    beyond = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    direct = ",".join(filter(None, [beyond, "127.0.0.1", "localhost"]))
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
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def _answers(port: int) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{port}/", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Serve until the process is told to end."""
    state = State.from_environment()
    server = CloudServer(Cloud(state.directory), state.port(NAME))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address = {"port": server.server_address[1], "pid": os.getpid()}
    write_atomically(state.path("cloud-server.json"), json.dumps(address))
    server.serve_forever()


if __name__ == "__main__":
    main()
