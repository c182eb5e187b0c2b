"""Requests and answers of the emulated Google's REST APIs, independent of the socket they travel over."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import unquote

from emulator.google.errors import RefusedCall

# google.rpc.Code, as the JSON error's `status` names it ("Errors", Google Cloud APIs documentation).
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    416: "OUT_OF_RANGE",
    503: "UNAVAILABLE",
}


@dataclass(kw_only=True)
class Request:
    """One request."""

    method: str
    """GET, POST, ..."""
    path: str
    """Path as it was sent, percent-encoded."""
    query: Mapping[str, str]
    """Decoded parameters; if one is given twice, the last counts."""
    headers: Mapping[str, str]
    """Headers, with case-insensitive names."""
    body: BinaryIO
    """The body; `read` returns it without its transfer encoding."""
    host: str
    """Where the client sent it, `127.0.0.1:4443`."""

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty for no body. Raises RefusedCall."""
        text = self.body.read()
        try:
            value = json.loads(text) if text.strip() else {}
        except ValueError:
            raise RefusedCall(400, "Parse Error: the body is not JSON", "parseError") from None
        if not isinstance(value, dict):
            raise RefusedCall(400, "Parse Error: the body is not a JSON object", "parseError")
        return value


@dataclass(kw_only=True)
class Response:
    """One answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    stream: BinaryIO | None = None
    """Sent after `body` and then closed; its length is the header `Content-Length`."""


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with a JSON body."""
    content = {"Content-Type": "application/json; charset=UTF-8", **(headers or {})}
    return Response(status=status, body=json.dumps(value).encode(), headers=content)


def as_error(refused: RefusedCall) -> Response:
    """A refusal as Google's JSON APIs send it."""
    detail = {"domain": "global", "reason": refused.reason, "message": refused.message}
    error = {"code": refused.code, "message": refused.message, "errors": [detail]}
    if refused.reason == "failedPrecondition":
        error["status"] = "FAILED_PRECONDITION"
    elif refused.code in _STATUS:
        error["status"] = _STATUS[refused.code]
    return as_json({"error": error}, refused.code)


Handler = Callable[..., Response]


@dataclass(frozen=True)
class Route:
    """A method, a path with `{names}` for whole segments (`{names...}` for the rest), and its handler."""

    method: str
    template: str
    handler: Handler

    def match(self, request: Request) -> dict[str, str] | None:
        """The decoded names in the path, or None if the request does not match."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+?)", re.escape(self.template))
        pattern = re.sub(r"\\\{(\w+)\\\.\\\.\\\.\\\}", r"(?P<\1>.*)", pattern)
        found = re.fullmatch(pattern, request.path)
        if self.method != request.method or found is None:
            return None
        return {name: unquote(value) for name, value in found.groupdict().items()}


def dispatch(routes: list[Route], request: Request) -> Response | None:
    """The answer of the first route that matches, or None. Raises what the handler raises."""
    for route in routes:
        names = route.match(request)
        if names is not None:
            return route.handler(request, **names)
    return None
