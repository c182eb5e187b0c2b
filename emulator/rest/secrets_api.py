"""Secret Manager v1 over REST: read secrets, add and access versions. Every call needs a token of `metadata`."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import google_crc32c

from emulator.google import secrets
from emulator.google.cloud import Cloud, CloudObject
from emulator.google.errors import NotFoundError
from emulator.google.http_errors import RefusedCall
from emulator.google.scope import project_number
from emulator.rest.http_message import Request, Response, Route, as_json, dispatch
from emulator.rest.metadata import Tokens, identity

_SECRETS = "/v1/projects/{project}/secrets"


class SecretsApi:
    """Answers `/v1/projects/<id or number>/secrets...`."""

    def __init__(self, cloud: Cloud, tokens: Tokens) -> None:
        self._cloud = cloud
        self._tokens = tokens
        self._routes = [
            Route("GET", _SECRETS, self._list),
            Route("POST", _SECRETS + "/{secret}:addVersion", self._add),
            Route("GET", _SECRETS + "/{secret}/versions", self._versions),
            Route("GET", _SECRETS + "/{secret}/versions/{version}:access", self._access),
            Route("GET", _SECRETS + "/{secret}/versions/{version}", self._version),
            Route("GET", _SECRETS + "/{secret}", self._secret),
        ]

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path of another API."""
        return dispatch(self._routes, request)

    def _list(self, request: Request, project: str) -> Response:
        self._tokens.require(request)
        found = self._cloud.list("secretmanager/secret", f"projects/{self._project(project)}/")
        return as_json({"secrets": [_secret(one) for one in found], "totalSize": len(found)})

    def _secret(self, request: Request, project: str, secret: str) -> Response:
        return as_json(_secret(self._found(request, project, secret)))

    def _add(self, request: Request, project: str, secret: str) -> Response:
        found = self._found(request, project, secret)
        given = request.json().get("payload", {})
        try:
            data = base64.b64decode(given.get("data", ""), validate=False)
        except binascii.Error:
            raise RefusedCall(400, "payload.data is not base64", "badRequest") from None
        if not data:
            raise RefusedCall(400, "The secret payload must not be empty.", "badRequest")
        sent = given.get("dataCrc32c")
        if sent is not None and int(sent) != google_crc32c.value(data):
            raise RefusedCall(400, "Checksum mismatch: payload.data_crc32c is not that of payload.data.", "badRequest")
        return as_json(_version(secrets.add_version(self._cloud, found.name, data)))

    def _versions(self, request: Request, project: str, secret: str) -> Response:
        found = self._found(request, project, secret)
        versions = self._cloud.list("secretmanager/version", f"{found.name}/")[::-1]
        return as_json({"versions": [_version(one) for one in versions], "totalSize": len(versions)})

    def _version(self, request: Request, project: str, secret: str, version: str) -> Response:
        found = self._found(request, project, secret)
        return as_json(_version(self._one_version(found, version)))

    def _access(self, request: Request, project: str, secret: str, version: str) -> Response:
        found = self._found(request, project, secret, permission="secretmanager.versions.access")
        one = self._one_version(found, version)
        if not one.body.get("enabled", True):
            state = f"Secret Version [{_numbered(one.name)}] is in DISABLED state."
            raise RefusedCall(400, state, "failedPrecondition")
        data = secrets.payload(one)
        checksum = str(google_crc32c.value(data))
        payload = {"data": base64.b64encode(data).decode(), "dataCrc32c": checksum}
        return as_json({"name": _numbered(one.name), "payload": payload})

    def _found(self, request: Request, project: str, secret: str, permission: str = "") -> CloudObject:
        """The secret, if the caller may know of it."""
        self._tokens.require(request)
        name = f"projects/{self._project(project)}/secrets/{secret}"
        principal = identity(self._cloud).principal
        # Google answers 403 before 404, so that who has no right learns nothing.
        if permission and principal and not secrets.may_access(self._cloud, name, principal):
            raise RefusedCall(
                403, f"Permission '{permission}' denied for resource '{name}' (or it may not exist).", "forbidden"
            )
        found = self._cloud.find("secretmanager/secret", name)
        if found is None:
            raise RefusedCall(404, f"Secret [{_numbered(name)}] not found.", "notFound")
        return found

    def _one_version(self, secret: CloudObject, version: str) -> CloudObject:
        try:
            return secrets.version(self._cloud, secret.name, version)
        except NotFoundError as missing:
            message = f"Secret Version [{_numbered(missing.name)}] not found."
            if version == "latest":
                message = f"Secret [{_numbered(secret.name)}] not found or has no versions."
            raise RefusedCall(404, message, "notFound") from None

    def _project(self, project: str) -> str:
        for known in self._cloud.list("resourcemanager/project"):
            if project == known.body["number"]:
                return str(known.body["projectId"])
        return project


def _secret(found: CloudObject) -> dict[str, Any]:
    replication = found.body.get("replication", {"auto": {}})
    shown = {"automatic": {}} if "auto" in replication else replication
    result = {"name": _numbered(found.name), "createTime": found.created, "replication": shown}
    return result | {key: found.body[key] for key in ("labels", "annotations") if key in found.body}


def _version(found: CloudObject) -> dict[str, Any]:
    state = "ENABLED" if found.body.get("enabled", True) else "DISABLED"
    return {"name": _numbered(found.name), "createTime": found.created, "state": state}


def _numbered(name: str) -> str:
    """Google gives names back with the project's number."""
    return re.sub(r"^projects/([^/]+)/", lambda found: f"projects/{project_number(found[1])}/", name)
