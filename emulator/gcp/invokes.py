"""Data sources of the emulated Google. One that this module lacks is an error, never a guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from emulator.gcp.resources.google_client import GoogleClient
from emulator.google.errors import RefusedCall
from emulator.google.scope import Scope


class UnknownFunctionError(Exception):
    """The program calls a data source that is not emulated."""


def answer(token: str, arguments: Mapping[str, Any], google: GoogleClient, scope: Scope) -> dict[str, Any]:
    """A data source's outputs. Raises UnknownFunctionError."""
    if token not in _ANSWERS:
        raise UnknownFunctionError(
            f"the emulated Google has no data source {token!r}. Add it to emulator/gcp/invokes.py; "
            f"it has {', '.join(sorted(_ANSWERS))}."
        )
    return _ANSWERS[token](arguments, google, scope)


def _project(arguments: Mapping[str, Any], google: GoogleClient, scope: Scope) -> dict[str, Any]:
    # Terraform Google provider: google_project.
    project = str(arguments.get("projectId") or scope.project)
    if not project:
        raise RefusedCall(400, "project: required field is not set", "required")
    found = google.call("GET", f"v1/projects/{project}")
    billing = google.call("GET", f"v1/projects/{project}/billingInfo")
    return {
        "autoCreateNetwork": False,
        "billingAccount": billing["billingAccountName"].removeprefix("billingAccounts/"),
        "deletionPolicy": "PREVENT",
        "effectiveLabels": {},
        "folderId": "",
        "id": f"projects/{project}",
        "labels": {},
        "name": found["name"],
        "number": found["projectNumber"],
        "orgId": "",
        "projectId": project,
        "pulumiLabels": {},
        "tags": {},
    }


_ANSWERS: dict[str, Callable[[Mapping[str, Any], GoogleClient, Scope], dict[str, Any]]] = {
    "gcp:organizations/getProject:getProject": _project,
}
