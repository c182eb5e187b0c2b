"""A server on a free port of 127.0.0.1 that answers as a test says: what stands in for the services of others."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, object] | None
"""Status and body, text or what becomes JSON; None hangs up without a word."""


@dataclass(frozen=True)
class Request:
    """What was asked."""

    method: str
    path: str
    """With the query."""
    headers: Message
    """Found whatever their case."""
    body: bytes


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # of connections that nobody has accepted yet: with five, many at once wait a second


@contextmanager
def answering(
    answer: Callable[[Request], Reply], headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve until the block ends; the server's address, `http://127.0.0.1:port`.

    Args:
        answer: called for every request, in a thread of its own.
        headers: further headers of every answer.
        tls: the server's certificate and what it asks of clients; the address is `https://...` then.
    """

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = answer(Request(self.command, self.path, self.headers, body))
            if reply is None:
                self.close_connection = True
                return
            status, said = reply
            content = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # the client may have left
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _reply

        def log_message(self, format: str, *args: object) -> None:
            return

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:  # the handshake belongs to the connection's thread, at its first read
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
