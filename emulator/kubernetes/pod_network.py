"""Requests to a Service of the emulated cluster, passed on to the process behind it.

Nothing listens at an emulated pod's address, and there is no cluster DNS. The KubeRay operator, which asks a RayJob's
head for the job's state, gets this module as its HTTP proxy; on a real cluster it reaches the head directly.
"""

from __future__ import annotations

import http.client
import http.server
import threading
from typing import Any
from urllib.parse import urlsplit

from emulator.machine.state import State

PORT = "pod-network"
"""Name of the proxy's port."""

_SECONDS = 10
_HOP_BY_HOP = {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "content-length"}  # RFC 9110, 7.6.1


class PodNetwork:
    """Ports of this machine by the Service that they stand for."""

    def __init__(self) -> None:
        self._ports: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def learn(self, cluster: str, service: str, port: int) -> None:
        """Record a cluster's head Service, as `<name>.<namespace>`, and its Ray's port."""
        with self._lock:
            self._ports[cluster] = (service, port)

    def forget(self, cluster: str) -> None:
        """Drop a cluster that is gone."""
        with self._lock:
            self._ports.pop(cluster, None)

    def knows(self, cluster: str) -> bool:
        """True if the cluster's Ray runs."""
        with self._lock:
            return cluster in self._ports

    def port(self, host: str) -> int | None:
        """Port behind a host name of the cluster, `<service>.<namespace>.svc.cluster.local`; None if there is none."""
        with self._lock:
            known = dict(self._ports.values())
        return known.get(host.partition(".svc.")[0])


def serve(state: State) -> PodNetwork:
    """Start the proxy on the port named `PORT`, in a thread; returns the network that it serves."""
    network = PodNetwork()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", state.port(PORT)), _handler(network))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return network


def environment(state: State) -> dict[str, str]:
    """Variables that make a Go program send its plain HTTP requests here (net/http, ProxyFromEnvironment)."""
    return {"HTTP_PROXY": f"http://127.0.0.1:{state.port(PORT)}", "NO_PROXY": "127.0.0.1,localhost"}


def _handler(network: PodNetwork) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            port = network.port(url.hostname or "")
            if port is None:
                self._answer(502, {}, f"no Service {url.hostname} leads anywhere".encode())
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            path = url.path + (f"?{url.query}" if url.query else "")
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
            try:
                connection.request(self.command, path, body or None, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._answer(502, {}, str(error).encode())
                return
            finally:
                connection.close()
            self._answer(answer.status, dict(answer.getheaders()), content)

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _pass_on

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the operator asks every three seconds."""

    return Handler
