"""Service Networking: private connections of networks to Google's services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.google import operations
from emulator.google.apis.cloudbuild import PRODUCER
from emulator.google.apis.compute import GlobalAddresses, Networks, refuse_on_roce
from emulator.google.cloud import CloudObject, Use
from emulator.google.collection import Body, Call, Collection, last, numbered, unnumbered
from emulator.google.errors import RefusedCall


class Connections(Collection):
    """The connection of a network to one service. Its calls name both; its path names only the service."""

    kind = "servicenetworking/connection"
    items = "connections"

    def project(self, call: Call) -> str:
        """Project of the network, which is in the body or among the parameters."""
        said = {**call.query, **call.sent}
        network = unnumbered(call.cloud, str(said.get("network") or said.get("consumerNetwork") or ""))
        return network.split("/")[1] if "/" in network else ""

    def do_create(self, call: Call) -> Body:
        network, ranges = self._network(call, call.body["network"]), call.body.get("reservedPeeringRanges", [])
        found = call.cloud.find(self.kind, self._name(call, network))
        if found and found.body["reservedPeeringRanges"] != ranges:
            # hashicorp/terraform-provider-google issue 3294.
            message = "Cannot modify allocated ranges in CreateConnection. Please use UpdateConnection."
            raise RefusedCall(400, message, "failedPrecondition")
        return self._put(call, network, ranges)

    def do_list(self, call: Call) -> Body:
        network = self._network(call, call.query["network"])
        found = call.cloud.find(self.kind, self._name(call, network))
        return {"connections": [found.body]} if found else {}

    def do_patch(self, call: Call) -> Body:
        network = self._network(call, call.body["network"])
        call.cloud.get(self.kind, self._name(call, network))
        return self._put(call, network, call.body.get("reservedPeeringRanges", []))

    def do_delete_connection(self, call: Call) -> Body:
        network = self._network(call, call.body["consumerNetwork"])
        found = call.cloud.get(self.kind, self._name(call, network))
        if any(last(held.body["network"]) == last(network.name) for held in call.cloud.list(PRODUCER)):
            message = (
                "Failed to delete connection; Producer services (e.g. CloudSQL, Cloud Memstore, etc.) are still using "
                "this connection."
            )
            return operations.begin(call, "", {}, error={"code": 9, "message": message})
        call.cloud.delete(self.kind, found.name)
        return operations.begin(call, "", {})

    def _put(self, call: Call, network: CloudObject, ranges: list[str]) -> Body:
        refuse_on_roce(call, network.name, "VPC peering")
        for allocated in ranges:
            self._require_allocated(call, allocated, network)
        body: Mapping[str, Any] = {
            "network": numbered(network.name),
            "peering": "servicenetworking-googleapis-com",
            "reservedPeeringRanges": ranges,
            "service": f"services/{call.names['servicesId']}",
        }
        # An allocated range may be deleted while its connection stays ("Configure private services access").
        uses = [Use(kind=Networks.kind, name=network.name)]
        found = call.cloud.put(self.kind, self._name(call, network), body, uses)
        return operations.begin(call, "", found.body)

    def _require_allocated(self, call: Call, allocated: str, network: CloudObject) -> None:
        project = network.name.split("/")[1]
        address = call.cloud.find(GlobalAddresses.kind, f"projects/{project}/global/addresses/{allocated}")
        asked = {"purpose": "VPC_PEERING", "network": network.name}
        if address is None or not asked.items() <= address.body.items():
            raise RefusedCall(
                400,
                f"Requested reserved range {allocated!r} is not an allocated range with purpose VPC_PEERING "
                f"in network {network.name}.",
                "badRequest",
            )

    def _network(self, call: Call, reference: str) -> CloudObject:
        """The network that a call names by its project's number."""
        name = unnumbered(call.cloud, reference)
        return call.cloud.get(Networks.kind, name)

    def _name(self, call: Call, network: CloudObject) -> str:
        return f"{network.name}:{call.names['servicesId']}"


COLLECTIONS = {"servicenetworking.services.connections": Connections()}
