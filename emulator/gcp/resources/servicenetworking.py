"""Private connections to Google's services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from emulator.gcp.resources.google_client import Body, GoogleClient
from emulator.google.collection import name_path


@dataclass(frozen=True)
class Connection:
    """`gcp:servicenetworking/connection:Connection`. The API wants the project by its number."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the connection; returns its id."""
        network, service = name_path(inputs["network"]), inputs["service"]
        ranges = {"reservedPeeringRanges": inputs["reservedPeeringRanges"]}
        body = {"network": _by_number(google, network), **ranges}
        google.await_operation("v1/", google.call("POST", f"v1/services/{service}/connections", body))
        return f"{quote(network, safe='')}:{service}"

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs, or None if the connection is gone."""
        network, service = _parts(identity)
        numbered = _by_number(google, network)
        answer = google.find(f"v1/services/{service}/connections", {"network": numbered}) or {}
        for found in answer.get("connections", []):
            if found["network"] == numbered:
                return {**given, **found, "network": given.get("network", network), "service": service}
        return None

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change its ranges."""
        network, service = _parts(identity)
        ranges = {"reservedPeeringRanges": new["reservedPeeringRanges"]}
        body = {"network": _by_number(google, network), **ranges}
        query = {"force": "true", "updateMask": "reservedPeeringRanges"}
        google.await_operation("v1/", google.call("PATCH", f"v1/services/{service}/connections/-", body, query))

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Delete the connection, unless a service still uses it."""
        network, service = _parts(identity)
        path = f"v1/services/{service}/connections/{service.replace('.', '-')}"
        body = {"consumerNetwork": _by_number(google, network)}
        google.await_operation("v1/", google.call("POST", path, body))


def _parts(identity: str) -> tuple[str, str]:
    """Network and service of an id."""
    network, _, service = unquote(identity).partition(":")
    return network, service


def _by_number(google: GoogleClient, network: str) -> str:
    project = network.split("/")[1]
    number = google.call("GET", f"v1/projects/{project}")["projectNumber"]
    return network.replace(f"projects/{project}/", f"projects/{number}/", 1)
