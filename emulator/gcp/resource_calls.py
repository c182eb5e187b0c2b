"""What the provider does with one resource: its calls, with missing projects, regions and locations filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.gcp.resources.google_client import GoogleClient
from emulator.gcp.row import ResourceType
from emulator.gcp.types import inputs_of
from emulator.google.cloud import CloudObject
from emulator.google.errors import RefusedCall
from emulator.google.scope import Scope


class ResourceCalls:
    """One resource type's calls, for a provider with a given configuration."""

    def __init__(self, google: GoogleClient, scope: Scope, token: str, row: ResourceType) -> None:
        self._google = google
        self._scope = scope
        self._token = token
        self._row = row
        self._client = row.resource

    def create(self, inputs: Mapping[str, Any]) -> CloudObject:
        """Make an object from plain inputs. Raises RefusedCall."""
        whole = self._placed(inputs)
        identity = self._client.create(self._google, whole)
        return self._there(identity, whole, "made")

    def update(self, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> CloudObject:
        """Change an object as its inputs changed. Raises RefusedCall."""
        whole = self._placed(new)
        self._client.update(self._google, identity, self._placed(old), whole)
        return self._there(identity, whole, "changed")

    def find(self, identity: str, given: Mapping[str, Any]) -> CloudObject | None:
        """The object in Pulumi's terms, or None; `given` are its inputs, as far as they are known."""
        outputs = self._client.read(self._google, identity, given)
        if outputs is None:
            return None
        return CloudObject(kind=self._token, name=self._row.imported(identity), body=outputs, created="")

    def delete(self, identity: str, outputs: Mapping[str, Any]) -> None:
        """Delete an object; one that is already gone is no error. Raises RefusedCall."""
        try:
            self._client.delete(self._google, identity, outputs)
        except RefusedCall as error:
            if error.code != 404:
                raise

    def _there(self, identity: str, given: Mapping[str, Any], done: str) -> CloudObject:
        if (found := self.find(identity, given)) is None:
            raise RefusedCall(404, f"{identity} was {done}, and is not there", "notFound")
        return found

    def _placed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs with missing project, region and location taken from the provider's configuration.

        Raises:
            RefusedCall: neither has a project.
        """
        takes, scope = inputs_of(self._token), self._scope
        # For clusters and pools the provider takes the configured zone (its GetLocation).
        location = scope.zone if self._token.startswith("gcp:container/") else scope.region
        places = {"project": scope.project, "region": scope.region, "location": location}
        body = {**{key: place for key, place in places.items() if key in takes and place}, **inputs}
        missing = [key for key in places if key in takes and not body.get(key)]
        if "project" in missing:
            raise RefusedCall(400, "project: required field is not set", "required")
        return body
