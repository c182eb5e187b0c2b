"""Lists that say whether an API is on: a freshly enabled one refuses calls for a while, at Google for minutes."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.gcp.rules import require_api
from emulator.google.cloud import Cloud
from emulator.google.scope import project_number
from emulator.rest.http_message import Request, Response, Route, as_json
from emulator.rest.metadata import Tokens

_LISTS = {
    "artifactregistry.googleapis.com": "/v1/projects/{project}/locations",
    "cloudbuild.googleapis.com": "/v1/projects/{project}/builds",
    "cloudresourcemanager.googleapis.com": "/v1/projects/{project}",
    "compute.googleapis.com": "/compute/v1/projects/{project}/global/networks",
    "container.googleapis.com": "/v1/projects/{project}/locations/-/clusters",
    "iam.googleapis.com": "/v1/projects/{project}/serviceAccounts",
    "secretmanager.googleapis.com": "/v1/projects/{project}/secrets",
    "serviceusage.googleapis.com": "/v1/projects/{project}/services/compute.googleapis.com",
    "storage.googleapis.com": "/storage/v1/b",
}

_ANSWERED_ELSEWHERE = {"secretmanager.googleapis.com", "storage.googleapis.com"}
"""What these list is in APIs of their own; here they are only refused."""


class ApiProbes:
    """Answers each list with nothing, or with Google's refusal while its API is not on."""

    def __init__(self, cloud: Cloud, tokens: Tokens) -> None:
        self._cloud = cloud
        self._tokens = tokens
        self._routes = {api: Route("GET", path, as_json) for api, path in _LISTS.items()}

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path of another API."""
        for api, route in self._routes.items():
            found: Mapping[str, str] | None = route.match(request)
            if found is None:
                continue
            project = found.get("project") or request.query.get("project", "")
            if project:
                require_api(self._cloud, api, project, project_number(project))
            if api in _ANSWERED_ELSEWHERE:
                return None
            self._tokens.require(request)
            return as_json({})
        return None
