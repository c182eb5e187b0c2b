"""A TCP proxy that cuts connections in the middle of an answer, as a bad network or a restarted load balancer does."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

_MOST_BYTES = 600  # less than most answers of Ray's Jobs API have


class CuttingProxy:
    """Passes connections on; cuts a share of them after some bytes of the answer."""

    def __init__(self, behind: int, share: float) -> None:
        self._behind, self._share, self._chance = behind, share, random.Random(0)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.cut = 0

    @property
    def port(self) -> int:
        return self._server.getsockname()[1]

    @contextlib.contextmanager
    def running(self) -> Iterator[CuttingProxy]:
        """Accept connections for the length of the block."""
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:
                near.close()
                continue
            least = self._chance.randrange(_MOST_BYTES) if self._chance.random() < self._share else None
            threading.Thread(target=self._pump, args=(near, far, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, least), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, until: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if until is not None and len(data) > until:
                    target.sendall(data[:until])
                    self.cut += 1
                    break
                until = None if until is None else until - len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
