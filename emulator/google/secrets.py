"""Secrets of the emulated Secret Manager: versions, their payloads, and who may read them.

A version made through Pulumi and one added through the REST API are the same kind of object.
"""

from __future__ import annotations

import base64
from typing import Any

from emulator.google.cloud import Cloud, CloudObject, Use
from emulator.google.errors import NotFoundError

ACCESSOR_ROLES = frozenset({"roles/secretmanager.secretAccessor", "roles/secretmanager.admin", "roles/owner"})
"""Roles that hold `secretmanager.versions.access` ("Secret Manager access control with IAM")."""


def next_version(cloud: Cloud, secret: str) -> int:
    """Number of the version that is added next; numbers start at 1 and are not used twice."""
    taken = [int(version.name.rsplit("/", 1)[-1]) for version in cloud.list("secretmanager/version", f"{secret}/")]
    return max(taken, default=0) + 1


def add_version(cloud: Cloud, secret: str, payload: bytes) -> CloudObject:
    """Add a version. Raises NotFoundError if there is no such secret."""
    with cloud.transaction():
        cloud.get("secretmanager/secret", secret)
        number = str(next_version(cloud, secret))
        body: dict[str, Any] = {
            "secret": secret,
            "version": number,
            "enabled": True,
            "payload": base64.b64encode(payload).decode(),
        }
        part = Use(kind="secretmanager/secret", name=secret, relation="part-of")
        return cloud.create("secretmanager/version", f"{secret}/versions/{number}", body, [part])


def version(cloud: Cloud, secret: str, which: str) -> CloudObject:
    """A version by number, or the newest for `latest`. Raises NotFoundError."""
    if which == "latest":
        found = cloud.list("secretmanager/version", f"{secret}/")
        if not found:
            raise NotFoundError("secretmanager/version", f"{secret}/versions/latest")
        return max(found, key=lambda one: int(one.name.rsplit("/", 1)[-1]))
    return cloud.get("secretmanager/version", f"{secret}/versions/{which}")


def payload(found: CloudObject) -> bytes:
    """Payload of a version."""
    if "payload" in found.body:
        return base64.b64decode(found.body["payload"])
    text = str(found.body.get("secretData") or found.body.get("secretDataWo") or "")
    return base64.b64decode(text) if found.body.get("isSecretDataBase64") else text.encode()


def may_access(cloud: Cloud, secret: str, principal: str) -> bool:
    """True if a principal has a grant on the secret itself that lets it read versions."""
    grants = cloud.list("secretmanager/iamMember", f"{secret}/")
    return any(grant.body["member"] == principal and grant.body["role"] in ACCESSOR_ROLES for grant in grants)
