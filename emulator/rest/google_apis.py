"""Google's REST APIs on the server: every call needs a token, except storage's, whose clients send an emulator none."""

from __future__ import annotations

from emulator.google.apis.rest import GoogleApis
from emulator.google.callers import QUOTA_PROJECT, Tokens, identity
from emulator.google.cloud import Cloud
from emulator.google.http_message import Request, Response, as_json


class GoogleRest:
    """Answers what `GoogleApis` serves."""

    def __init__(self, cloud: Cloud, tokens: Tokens) -> None:
        self._cloud = cloud
        self._apis = GoogleApis(cloud)
        self._tokens = tokens

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path that belongs to no API."""
        if not request.path.startswith("/storage/"):
            self._tokens.require(request)
        principal = identity(self._cloud).principal
        quota_project = request.headers.get(QUOTA_PROJECT, "")
        found = self._apis.answer(request.method, request.path, request.query, request.json(), principal, quota_project)
        return None if found is None else as_json(found)
