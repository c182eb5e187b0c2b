"""Calls to Google's REST APIs over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import requests

from emulator.google.callers import QUOTA_PROJECT, Tokens
from emulator.google.errors import RefusedCall

Body = dict[str, Any]
Transport = Callable[[str, str, Mapping[str, str], Mapping[str, Any] | None, str], Body]
"""Maps a call's verb, path, parameters, body and quota project to its answer. Raises RefusedCall."""

RETRY_SECONDS = (0.5, 0.5, 1.0, 1.5)
"""Seconds before each retry of a refused call, POST included: the first delays of Google's own provider, which goes on
for 20 minutes."""

_POLL_SECONDS = 0.05
"""Google's own provider polls every ten seconds; nothing takes that long here."""


class GoogleClient:
    """Google's APIs, for one provider."""

    def __init__(self, send: Transport) -> None:
        self._send = send
        self.quota_project = ""
        """Id of the project whose quota calls use; empty: calls name none."""
        self._locks: dict[str, threading.Lock] = {}

    def call(
        self, verb: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> Body:
        """The answer to a call; `path` is percent-encoded. Raises RefusedCall."""
        for seconds in RETRY_SECONDS:
            try:
                return self._send(verb, f"/{path}", query or {}, body, self.quota_project)
            except RefusedCall as error:
                if error.code not in (429, 500, 502, 503):
                    raise
            time.sleep(seconds)
        return self._send(verb, f"/{path}", query or {}, body, self.quota_project)

    def find(self, path: str, query: Mapping[str, str] | None = None) -> Body | None:
        """The resource at a path, or None. Raises RefusedCall for a refusal other than 404."""
        try:
            return self.call("GET", path, query=query)
        except RefusedCall as error:
            if error.code == 404:
                return None
            raise

    def await_operation(self, path: str, operation: Body) -> Body:
        """Poll a long-running operation; returns its answer. `path` precedes its name. Raises RefusedCall."""
        while not operation.get("done"):
            time.sleep(_POLL_SECONDS)
            operation = self.call("GET", f"{path}{operation['name']}")
        if "error" in operation:
            error = operation["error"]
            raise RefusedCall(error["code"], error["message"], "operationFailed")
        return operation.get("response", {})

    def await_status(self, path: str, operation: Body) -> None:
        """Wait until an operation of Compute Engine's form is done; `path` is its own. Raises RefusedCall."""
        while operation["status"] != "DONE":
            time.sleep(_POLL_SECONDS)
            operation = self.call("GET", path)
        for error in operation.get("error", {}).get("errors", []):
            raise RefusedCall(400, error["message"], error["code"])

    def alone(self, name: str) -> threading.Lock:
        """The lock to hold while reading, changing and writing back the object of that name."""
        return self._locks.setdefault(name, threading.Lock())


def over_http(address: str, tokens: Tokens) -> Transport:
    """Calls to the server at an address, `http://127.0.0.1:4443`."""
    local = threading.local()

    def send(
        verb: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None, quota_project: str
    ) -> Body:
        session: requests.Session | None = getattr(local, "session", None)
        if session is None:
            session = local.session = requests.Session()
            session.trust_env = False  # never through a proxy
        headers = {"Authorization": f"Bearer {tokens.issue()}", **quota_header(quota_project)}
        answer = session.request(verb, address + path, params=query, json=body, headers=headers, timeout=60)
        return answer_of(answer.status_code, answer.content)

    return send


def quota_header(project: str) -> dict[str, str]:
    """The header that names the project whose quota a call uses; none for an empty name."""
    return {QUOTA_PROJECT: project} if project else {}


def answer_of(status: int, content: bytes) -> Body:
    """The body of an HTTP answer. Raises RefusedCall for an error."""
    body = json.loads(content) if content else {}
    if status < 400:
        return body
    error = body["error"]
    raise RefusedCall(error["code"], error["message"], error["errors"][0]["reason"])
