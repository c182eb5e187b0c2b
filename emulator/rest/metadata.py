"""The metadata server: the identity of programs on this machine in the emulated Google, and their access tokens.

On GKE with Workload Identity a pod's `default` account is its Kubernetes service account; here it is the one set by
`set_identity`, for every program that asks. Paths: Google Cloud documentation, "About VM metadata".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.google.callers import TOKEN_SECONDS, Identity, Tokens, identity
from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall
from emulator.google.http_message import Request, Response, Route, as_json, dispatch
from emulator.google.scope import project_number

_ROOT = "/computeMetadata/v1/"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email")
_FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


class MetadataServer:
    """Answers `/` and `/computeMetadata/v1/...`."""

    def __init__(self, cloud: Cloud, tokens: Tokens) -> None:
        self._cloud = cloud
        self._tokens = tokens
        self._routes = [
            Route("GET", "/", self._ping),
            Route("GET", _ROOT + "instance/service-accounts/{account}/token", self._token),
            Route("GET", _ROOT + "{path...}", self._value),
        ]

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path of another API."""
        if request.path.startswith("/computeMetadata/") and request.headers.get("Metadata-Flavor") != "Google":
            return Response(
                status=403, body=b"Missing required header: Metadata-Flavor: Google\n", headers=dict(_FLAVOR)
            )
        return dispatch(self._routes, request)

    def _ping(self, request: Request) -> Response:
        return Response(body=b"computeMetadata/\n", headers={"Content-Type": "application/text", **_FLAVOR})

    def _token(self, request: Request, account: str) -> Response:
        if account not in ("default", _email(identity(self._cloud))):
            raise RefusedCall(404, f"there is no service account {account!r} on this machine", "notFound")
        token = {"access_token": self._tokens.issue(), "expires_in": TOKEN_SECONDS, "token_type": "Bearer"}
        return as_json(token, headers=_FLAVOR)

    def _value(self, request: Request, path: str) -> Response:
        found: Any = self._tree(identity(self._cloud))
        for segment in filter(None, path.split("/")):
            if not isinstance(found, Mapping) or segment not in found:
                return Response(status=404, body=b"not found\n", headers=dict(_FLAVOR))
            found = found[segment]
        if not isinstance(found, Mapping):
            return _text(str(found))
        if request.query.get("recursive", "").lower() == "true":
            return as_json(_camel(found), headers=_FLAVOR)
        if not request.path.endswith("/"):
            return Response(status=301, headers={"Location": f"{request.path}/", **_FLAVOR})
        return _text("".join(f"{key}/\n" if isinstance(below, Mapping) else f"{key}\n" for key, below in found.items()))

    def _tree(self, me: Identity) -> dict[str, Any]:
        number = project_number(me.project)
        clusters = self._cloud.list("container/cluster", f"projects/{me.project}/")
        attributes = {}
        if clusters:
            body = clusters[-1].body
            attributes = {"cluster-name": body["name"], "cluster-location": body["location"]}
        account = {"aliases": "default", "email": _email(me), "scopes": "\n".join(_SCOPES)}
        return {
            "instance": {
                "attributes": attributes,
                "hostname": f"emulated.{me.zone}.c.{me.project}.internal",
                "id": project_number(f"{me.project}/instance"),
                "name": "emulated",
                "service-accounts": {"default": account, _email(me): account},
                "zone": f"projects/{number}/zones/{me.zone}",
            },
            "project": {"numeric-project-id": number, "project-id": me.project},
            "universe": {"universe-domain": "googleapis.com"},
        }


def _email(me: Identity) -> str:
    """The account of the project's workload pool, as on GKE."""
    return f"{me.project}.svc.id.goog"


def _text(text: str) -> Response:
    return Response(body=text.encode(), headers={"Content-Type": "application/text", **_FLAVOR})


def _camel(value: Any) -> Any:
    # Like the real server for JSON: service-accounts becomes serviceAccounts; values under attributes keep their keys.
    if not isinstance(value, Mapping):
        return value.split("\n") if "\n" in str(value) else value
    return {_camel_key(key): item if key == "attributes" else _camel(item) for key, item in value.items()}


def _camel_key(key: str) -> str:
    first, *rest = key.split("-")
    return key if "@" in key or "." in key else first + "".join(word.capitalize() for word in rest)
