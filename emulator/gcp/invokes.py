"""Data sources of the emulated Google. One that the program uses and this module lacks is an error, never a guess."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from emulator.google.http_errors import RefusedCall
from emulator.google.scope import Scope, project_number


class UnknownFunctionError(Exception):
    """The program calls a data source that is not emulated."""


def answer(token: str, arguments: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """A data source's outputs. Raises UnknownFunctionError."""
    if token not in _ANSWERS:
        raise UnknownFunctionError(
            f"the emulated Google has no data source {token!r}. Add it to emulator/gcp/invokes.py; "
            f"it has {', '.join(sorted(_ANSWERS))}."
        )
    return _ANSWERS[token](arguments, scope)


def _project(arguments: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    # Terraform Google provider: google_project.
    project = str(arguments.get("projectId") or scope.project)
    if not project:
        raise RefusedCall(400, "project: required field is not set", "required")
    return {
        "autoCreateNetwork": False,
        "billingAccount": "000000-000000-000000",
        "deletionPolicy": "PREVENT",
        "effectiveLabels": {},
        "folderId": "",
        "id": f"projects/{project}",
        "labels": {},
        "name": project,
        "number": project_number(project),
        "orgId": "",
        "projectId": project,
        "pulumiLabels": {},
        "tags": {},
    }


_ANSWERS: dict[str, Callable[[Mapping[str, Any], Scope], dict[str, Any]]] = {
    "gcp:organizations/getProject:getProject": _project,
}
