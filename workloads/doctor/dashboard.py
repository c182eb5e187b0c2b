"""Requests of the checks to Ray's dashboard: its possible addresses, our token, one question."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from workloads.doctor.finding import Subject
from workloads.errors import AuthError

ANSWER_SECONDS = 5.0

PORT = 8265
"""Ray's default."""

NO_TOKEN = "Without a token anybody who reaches the dashboard runs code: deploy with spec.authOptions.mode token."


def addresses(place: Subject) -> list[str]:
    """Addresses where it may answer: the stack's own, then the host of Ray's, then this machine."""
    stated = [place.environment.ray_dashboard_url.rstrip("/")] if place.environment else []
    address = place.variables.get("RAY_ADDRESS", "")  # `host:port`, `ray://...` or `http://...`
    host = urlsplit(address if "://" in address else f"//{address}").hostname
    hosts = [name for name in (host, "127.0.0.1") if name and name != "auto"]
    return list(dict.fromkeys([*stated, *(f"http://{name}:{PORT}" for name in hosts)]))


def token(place: Subject) -> str:
    """The token that Ray's own client would send.

    Raises:
        AuthError: there is none.
    """
    if found := place.variables.get("RAY_AUTH_TOKEN", "").strip():
        return found
    path = place.variables.get("RAY_AUTH_TOKEN_PATH", "")
    if not path:
        raise AuthError("RAY_AUTH_MODE is 'token', without a token", NO_TOKEN)
    try:
        found = Path(path).read_text().strip()
    except OSError as error:
        raise AuthError(
            f"the token file {path} cannot be read: {error.strerror}", "Check the Secret's mount."
        ) from error
    if not found:
        raise AuthError(f"the token file {path} is empty", "Check the Secret that KubeRay made for the RayCluster.")
    return found


def ask(url: str, token: str | None) -> tuple[int, bytes] | None:
    """HTTP status and body; None where nothing answers."""
    # Without proxies: the address is of this cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        with opener.open(request, timeout=ANSWER_SECONDS) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except (OSError, ValueError, http.client.HTTPException):  # the last: a service that speaks no HTTP has the port
        return None
