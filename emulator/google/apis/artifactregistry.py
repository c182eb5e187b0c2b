"""Artifact Registry: repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.google import operations
from emulator.google.cloud import CloudObject, timestamp
from emulator.google.collection import Body, Call, Collection, last
from emulator.google.errors import NotFoundError


class Repositories(Collection):
    """`projects/p/locations/l/repositories/r`."""

    kind = "artifactregistry/repository"
    items = "repositories"
    id_parameter = "repositoryId"

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        for policy in body.get("virtualRepositoryConfig", {}).get("upstreamPolicies", []):
            if call.cloud.find(self.kind, policy["repository"]) is None:
                raise NotFoundError(self.kind, policy["repository"])

    def filled(self, call: Call, name: str, body: Body) -> Body:
        now = timestamp(call.cloud.now())
        location, project = name.split("/")[3], name.split("/")[1]
        return {
            "name": name,
            "createTime": now,
            "updateTime": now,
            "mode": "STANDARD_REPOSITORY",
            "registryUri": f"{location}-{body['format'].lower()}.pkg.dev/{project}/{last(name)}",
        }

    def answer(self, call: Call, found: CloudObject, verb: str) -> Body:
        if verb == "update":
            return self.shown(call, found)
        return operations.begin(call, found.name.partition("/repositories/")[0], super().answer(call, found, verb))


class Locations(Collection):
    """`projects/p/locations`: Google's list of regions is not kept here."""

    kind = "artifactregistry/location"
    items = "locations"


COLLECTIONS = {
    "artifactregistry.projects.locations": Locations(),
    "artifactregistry.projects.locations.repositories": Repositories(),
}
