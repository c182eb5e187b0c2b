"""Who calls the emulated Google: the identity of this machine's programs, and the tokens that they show."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall
from emulator.google.http_message import Request

SERVER = "cloud-server"
"""Name of the process that answers Google's REST APIs, of its port and of its log."""

QUOTA_PROJECT = "X-Goog-User-Project"
"""Header naming the project whose quota a call uses (Google Cloud APIs documentation, "System parameters")."""

TOKEN_SECONDS = 3600
"""How long a token is valid."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of a caller."""

    project: str
    """Project id."""
    zone: str
    """Zone in which the caller pretends to run."""
    principal: str = ""
    """IAM principal of the caller (`principal://...`, `serviceAccount:...`); empty: an operator, who may do all."""


def set_identity(cloud: Cloud, identity: Identity) -> None:
    """Set the identity that the metadata server reports to every program."""
    cloud.put("emulator/identity", "default", asdict(identity))


def identity(cloud: Cloud) -> Identity:
    """The caller's identity: the one that `set_identity` gave, else an operator in the first project."""
    said = cloud.find("emulator/identity", "default")
    if said:
        return Identity(**said.body)
    projects = cloud.list("resourcemanager/project")
    project = str(projects[0].body["projectId"]) if projects else "emulated-project"
    return Identity(project=project, zone="us-central1-b")


class Tokens:
    """Access tokens of one emulator. Each carries its expiry time and a signature, so it survives a restart."""

    def __init__(self, cloud: Cloud) -> None:
        file = cloud.directory / "token-key"
        with tempfile.NamedTemporaryFile(dir=cloud.directory) as fresh, suppress(FileExistsError):
            fresh.write(secrets.token_bytes(32))
            fresh.flush()
            os.link(fresh.name, file)  # appears complete: another process reads it as soon as it exists
        self._key = file.read_bytes()

    def issue(self, seconds: int = TOKEN_SECONDS) -> str:
        """A new token, valid for an hour by default."""
        ends = str(int(time.time()) + seconds)
        return f"ya29.emulated.{ends}.{self._signature(ends)}"

    def require(self, request: Request) -> None:
        """Refuse a request that carries no valid token of this emulator."""
        _, _, token = request.headers.get("Authorization", "").partition("Bearer ")
        parts = token.split(".")
        good = len(parts) == 4 and hmac.compare_digest(parts[3], self._signature(parts[2])) and parts[2].isdigit()
        if not good or int(parts[2]) < time.time():
            raise RefusedCall(
                401,
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
                "valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.",
                "authError",
            )

    def _signature(self, ends: str) -> str:
        digest = hmac.new(self._key, ends.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
