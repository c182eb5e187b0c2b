"""An emulated Google of a test's own: its cloud, and its HTTP server in a process of its own, as it really runs.

A thread would not do: pyarrow holds the interpreter's lock while it waits for some answers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.auth.compute_engine import _metadata

from emulator.google.cloud import Cloud
from emulator.machine.state import State
from emulator.rest import cloud_server

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


def lead_clients_to(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the environment in which Google's clients find the emulated cloud."""
    for name, value in cloud_server.environment(State(google.cloud.directory)).items():
        monkeypatch.setenv(name, value)
    # google-auth reads this one when it is imported, which in this process was long ago.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", google.host)


def enable(cloud: Cloud, api: str) -> None:
    """Have an API on since long ago, so that it answers."""
    cloud.put("serviceusage/service", f"{PROJECT}/{api}", {"service": api})
    with sqlite3.connect(cloud.directory / "cloud.sqlite") as database:
        database.execute("UPDATE objects SET created = '2026-01-01T00:00:00Z' WHERE name = ?", (f"{PROJECT}/{api}",))


@contextmanager
def served(directory: Path) -> Iterator[Google]:
    """Serve an emulated Google for the time of the block."""
    state = State(directory)
    cloud = Cloud(state.directory)
    try:
        cloud_server.start(state)
        for api in ("secretmanager.googleapis.com", "storage.googleapis.com"):
            enable(cloud, api)
        yield Google(cloud, state.port(cloud_server.NAME))
    finally:
        state.stop(cloud_server.NAME)
    assert "Traceback" not in state.log(cloud_server.NAME).read_text()
