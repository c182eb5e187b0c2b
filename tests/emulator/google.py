"""An emulated Google of a test's own: its cloud, and its HTTP server in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emulator.cloud import Cloud
from emulator.cloud_server import CloudServer

PROJECT = "test-project"


@dataclass(frozen=True)
class Google:
    """Where it answers, and what is in it."""

    cloud: Cloud
    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> str:
        """A bucket, as the provider would make it."""
        self.cloud.put("storage/bucket", name, {"name": name, "project": PROJECT, "location": "us-central1"})
        return name

    def folder(self, bucket: str) -> Path:
        """The folder that a mount of the bucket would be."""
        return self.cloud.directory / "buckets" / bucket


@contextmanager
def served(directory: Path) -> Iterator[Google]:
    """Serve an emulated Google for the time of the block."""
    cloud = Cloud(directory)
    server = CloudServer(cloud, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Google(cloud, server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
