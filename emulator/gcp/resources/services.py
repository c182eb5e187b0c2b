"""APIs that a project enables, and service agents: objects without a body of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emulator.gcp.resources.google_client import Body, GoogleClient


@dataclass(frozen=True)
class EnabledApi:
    """`gcp:projects/service:Service`. Destroying it leaves the API enabled, unless `disableOnDestroy` is set."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Enable the API; returns its id."""
        project, service = inputs["project"], inputs["service"]
        if not self._is_on(google, project, service):
            answer = google.call("POST", f"v1/projects/{project}/services/{service}:enable", {})
            google.await_operation("v1beta1/", answer)
        return f"{project}/{service}"

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs, or None if the API is disabled."""
        project, service = identity.split("/")
        found = {**given, "project": project, "service": service}
        return found if self._is_on(google, project, service) else None

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Do nothing: no input that can change is Google's."""

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Disable the API if `disableOnDestroy` is set."""
        if outputs.get("disableOnDestroy"):
            project, service = identity.split("/")
            body = {"checkIfServiceHasUsage": "SKIP"}
            google.await_operation(
                "v1beta1/", google.call("POST", f"v1/projects/{project}/services/{service}:disable", body)
            )

    def _is_on(self, google: GoogleClient, project: str, service: str) -> bool:
        answer = google.call("GET", f"v1/projects/{project}/services", query={"filter": "state:ENABLED"})
        return any(one["name"].endswith(f"/{service}") for one in answer.get("services", []))


@dataclass(frozen=True)
class ServiceAgent:
    """`gcp:projects/serviceIdentity:ServiceIdentity`: made once, neither read nor deleted afterwards."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the service create its agent; returns the id."""
        name = f"projects/{inputs['project']}/services/{inputs['service']}"
        google.await_operation("v1beta1/", google.call("POST", f"v1beta1/{name}:generateServiceIdentity"))
        return name

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs; Google's answer named an account only for some services."""
        _, project, _, service = identity.split("/")
        return {"email": "", "member": "", **given, "project": project, "service": service}

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Unused: every change replaces."""

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Do nothing: the agent stays."""
