"""An emulated Google of a test's own: its cloud, and its HTTP server in a process of its own, as it really runs.

A thread would not do: pyarrow holds the interpreter's lock while it waits for some answers.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.auth.compute_engine import _metadata
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build

from emulator.gcp.resources.google_client import Transport, answer_of, quota_header
from emulator.google import policies
from emulator.google.callers import Tokens
from emulator.google.cloud import Cloud
from emulator.google.http_message import Request
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

    def credentials(self) -> Credentials:
        """An operator's."""
        return Credentials(Tokens(self.cloud).issue())

    def client(self, api: str, version: str = "v1", base: str = "") -> Any:
        """Google's own client of an API, from its discovery document."""
        options = {"api_endpoint": f"http://{self.host}{base}"}
        return build(api, version, static_discovery=True, client_options=options, credentials=self.credentials())

    def make_bucket(self, name: str) -> str:
        """A bucket, as the provider would make it."""
        return make_bucket(self.cloud, name)

    def folder(self, bucket: str) -> Path:
        """The folder that a mount of the bucket would be."""
        return self.cloud.directory / "buckets" / bucket


def lead_clients_to(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the environment in which Google's clients find the emulated cloud."""
    for name, value in cloud_server.environment(State(google.cloud.directory)).items():
        monkeypatch.setenv(name, value)
    # google-auth reads this one when it is imported, which in this process was long ago.
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", google.host)


def directly(cloud: Cloud) -> Transport:
    """The server's answers without its socket, for tests of one process."""
    apis, tokens = cloud_server.apis_of(cloud), Tokens(cloud)

    def send(
        verb: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None, quota_project: str
    ) -> dict[str, Any]:
        request = Request(
            method=verb,
            path=path,
            query=query,
            headers={"Authorization": f"Bearer {tokens.issue()}", **quota_header(quota_project)},
            body=io.BytesIO(json.dumps(body).encode() if body is not None else b""),
            host="127.0.0.1",
        )
        response = cloud_server.answer(apis, request)
        return answer_of(response.status, response.body)

    return send


def make_bucket(cloud: Cloud, name: str, project: str = PROJECT) -> str:
    """Make a bucket as the provider does, without a socket. Returns its name."""
    enable(cloud, "storage.googleapis.com", project)
    body = {"name": name, "location": "us-central1"}
    directly(cloud)("POST", "/storage/v1/b", {"project": project}, body, "")
    return name


def enable(cloud: Cloud, api: str, project: str = PROJECT) -> None:
    """Have an API on since long ago, so that it answers."""
    name = f"projects/{project}/services/{api}"
    cloud.put("serviceusage/service", name, {})
    with sqlite3.connect(cloud.directory / "cloud.sqlite") as database:
        database.execute("UPDATE objects SET created = '2026-01-01T00:00:00Z' WHERE name = ?", (name,))


def grant(cloud: Cloud, member: str, api: str, resource: str, roles: Iterable[str]) -> None:
    """Have a member hold these roles on a resource, and nobody any other, since long enough ago."""
    bindings = [{"role": role, "members": [member]} for role in roles]
    policies.put(cloud, policies.full_name(f"{api}.googleapis.com", resource), {"bindings": bindings})
    cloud.turn(policies.GRANT_SECONDS)


@contextmanager
def served(directory: Path, *apis: str) -> Iterator[Google]:
    """Serve an emulated Google for the time of the block, with these APIs on beside those of secrets and storage."""
    state = State(directory)
    cloud = Cloud(state.directory)
    try:
        cloud_server.start(state)
        for api in ("secretmanager", "storage", *apis):
            enable(cloud, f"{api}.googleapis.com")
        yield Google(cloud, state.port(cloud_server.NAME))
    finally:
        state.stop(cloud_server.NAME)
    assert "Traceback" not in state.log(cloud_server.NAME).read_text()
