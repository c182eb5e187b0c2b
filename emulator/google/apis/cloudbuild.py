"""Cloud Build: private worker pools, and what one holds on the other side of a private connection."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from emulator.google import operations
from emulator.google.cloud import CloudObject, Use, timestamp
from emulator.google.collection import Body, Call, Collection, last
from emulator.google.errors import RefusedCall
from emulator.google.scope import project_number

PRODUCER = "servicenetworking/producer"
"""Kind of what a worker pool holds on the other side of a private connection."""


class WorkerPools(Collection):
    """`projects/p/locations/l/workerPools/w`."""

    kind = "cloudbuild/workerPool"
    items = "workerPools"
    id_parameter = "workerPoolId"

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        network = _peered_network(body)
        connections = call.cloud.list("servicenetworking/connection")
        if network and not any(last(connection.body["network"]) == last(network) for connection in connections):
            raise RefusedCall(
                400,
                f"failed precondition: due to network {network} having no private connection to "
                "servicenetworking.googleapis.com, the worker pool cannot be peered with it",
                "failedPrecondition",
            )

    def filled(self, call: Call, name: str, body: Body) -> Body:
        now = timestamp(call.cloud.now())
        digest = hashlib.sha256(name.encode()).hexdigest()
        return {
            "name": name,
            "uid": digest[:32],
            "etag": f'"{digest[32:43]}"',
            "state": "RUNNING",
            "createTime": now,
            "updateTime": now,
        }

    def made(self, call: Call, found: CloudObject) -> None:
        if network := _peered_network(found.body):
            call.cloud.put(PRODUCER, found.name, {"network": network})

    def removed(self, call: Call, found: CloudObject) -> None:
        if call.cloud.find(PRODUCER, found.name):
            call.cloud.expire(PRODUCER, found.name, operations.LATE_SECONDS)

    def do_list(self, call: Call) -> Body:
        """List pools. A pool's part on the other side of the peering outlives it: such a pool is listed as DELETING."""
        prefix = f"{call.name}/"
        pools = {one.name: self.shown(call, one) for one in call.cloud.list(self.kind, prefix)}
        for held in call.cloud.list(PRODUCER, prefix):
            peered = {"networkConfig": {"peeredNetwork": held.body["network"]}}
            pools.setdefault(held.name, {"name": held.name, "state": "DELETING", "privatePoolV1Config": peered})
        return {"workerPools": list(pools.values())} if pools else {}

    def answer(self, call: Call, found: CloudObject, verb: str) -> Body:
        return operations.begin(call, found.name.partition("/workerPools/")[0], super().answer(call, found, verb))

    def uses(self, call: Call, body: Mapping[str, Any]) -> list[Use]:
        network = _peered_network(body)
        if network:
            call.cloud.get("compute/network", network.replace(project_number(call.project), call.project, 1))
        return []


class Builds(Collection):
    """`projects/p/builds`: no build runs here."""

    kind = "cloudbuild/build"
    items = "builds"


def _peered_network(body: Mapping[str, Any]) -> str:
    return body.get("privatePoolV1Config", {}).get("networkConfig", {}).get("peeredNetwork", "")


COLLECTIONS = {"cloudbuild.projects.builds": Builds(), "cloudbuild.projects.locations.workerPools": WorkerPools()}
