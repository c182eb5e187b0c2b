"""What the program's waits poll: compute's lists of a network's users, and Cloud Build's list of worker pools.

GKE's late objects are in the emulated cloud until their end, so that a wait sees them go.
"""

from __future__ import annotations

import re
from typing import Any

from emulator.gcp.row import COMPUTE_URL
from emulator.gcp.rules import PRODUCER
from emulator.google.cloud import Cloud, CloudObject
from emulator.rest.http_message import Request, Response, Route, as_json, dispatch
from emulator.rest.metadata import Tokens

_COMPUTE = "/compute/v1/projects/{project}/"
_KINDS = {
    "firewalls": "compute/firewall",
    "addresses": "compute/address",
    "forwardingRules": "compute/forwardingRule",
    "networkEndpointGroups": "compute/networkEndpointGroup",
    "subnetworks": "compute/subnetwork",
}


class ComputeApi:
    """Answers the lists; every call needs a token of the metadata server."""

    def __init__(self, cloud: Cloud, tokens: Tokens) -> None:
        self._cloud = cloud
        self._tokens = tokens
        self._routes = [
            Route("GET", _COMPUTE + "global/{collection}", self._global),
            Route("GET", _COMPUTE + "aggregated/{collection}", self._aggregated),
            Route("GET", "/v1/projects/{project}/locations/{location}/workerPools", self._worker_pools),
        ]

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path of another API."""
        return dispatch(self._routes, request)

    def _global(self, request: Request, project: str, collection: str) -> Response:
        self._tokens.require(request)
        items = [_item(one) for one in self._list(project, collection) if "/global/" in one.name]
        return as_json({"kind": f"compute#{collection}List", "id": f"projects/{project}/global", "items": items})

    def _aggregated(self, request: Request, project: str, collection: str) -> Response:
        self._tokens.require(request)
        scopes: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for one in self._list(project, collection):
            place = re.search(r"/((?:zones|regions)/[^/]+|global)/", one.name)
            scopes.setdefault(place[1] if place else "global", {}).setdefault(collection, []).append(_item(one))
        return as_json({"kind": f"compute#{collection}AggregatedList", "items": scopes})

    def _worker_pools(self, request: Request, project: str, location: str) -> Response:
        self._tokens.require(request)
        prefix = f"projects/{project}/locations/{location}/workerPools/"
        pools: dict[str, dict[str, Any]] = {
            pool.name: {"name": pool.name, "state": "RUNNING"}
            for pool in self._cloud.list("cloudbuild/workerPool", prefix)
        }
        # What a pool holds on the other side of the peering outlives it: Cloud Build lists such a pool as going.
        for held in self._cloud.list(PRODUCER, prefix):
            pool = pools.setdefault(held.name, {"name": held.name, "state": "DELETING"})
            pool["privatePoolV1Config"] = {"networkConfig": {"peeredNetwork": held.body["network"]}}
        return as_json({"workerPools": list(pools.values())} if pools else {})

    def _list(self, project: str, collection: str) -> list[CloudObject]:
        return self._cloud.list(_KINDS[collection], f"projects/{project}/") if collection in _KINDS else []


def _item(found: CloudObject) -> dict[str, Any]:
    network = str(found.body.get("network", ""))
    links = {"network": network if network.startswith("https://") or not network else COMPUTE_URL + network}
    return {**found.body, **links, "selfLink": COMPUTE_URL + found.name}
