"""The NICs of a GPU node as Kubernetes objects: one GKE Network and its GKENetworkParamSet per NIC beyond the first.

The order is the contract: Network `rdma-<i>` is RDMA subnet `i`, the i-th RDMA NIC of the pool, and eth(2+i) of a pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack import wait
from oasis_stack.components.node_config import AdditionalNetwork
from oasis_stack.facts import names

API_VERSION = "networking.gke.io/v1"
KINDS = ("networks.networking.gke.io", "gkenetworkparamsets.networking.gke.io")

SERVED_MINUTES = 20
"""GKE installs these two with multi-networking, while the cluster is made."""

DELETE_TIMEOUT = "20m"
"""A Network is deleted once no pod uses it, a parameter set once no Network does."""


@dataclass(frozen=True, kw_only=True)
class DeviceNetworksArgs:
    """Arguments of the device networks."""

    nics: Sequence[AdditionalNetwork]
    """Networks of the further NICs in interface order: the gVNIC, then RDMA NIC 0, 1, ...; if two are swapped, NCCL
    pairs rails that are not connected."""
    kubeconfig: pulumi.Input[str]
    """Kubeconfig of the cluster, as JSON, used to wait for the two kinds."""


class DeviceNetworks(pulumi.ComponentResource):
    """Registers a GKENetworkParamSet and a Network for the second gVNIC and for each RDMA NIC."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    network_names: list[pulumi.Output[str]]

    def __init__(self, name: str, args: DeviceNetworksArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:DeviceNetworks", name, None, opts)
        served = wait.CustomResourcesServed(
            name, args.kubeconfig, KINDS, SERVED_MINUTES, pulumi.ResourceOptions(parent=self)
        )
        network_names = names.device_networks(len(args.nics) - 1)
        self.network_names = [
            self._pair(network, nic, "NetDevice" if network == names.GVNIC_NETWORK else "RDMA", served)
            for network, nic in zip(network_names, args.nics, strict=True)
        ]
        self.register_outputs({"network_names": self.network_names})

    def _pair(self, name: str, nic: AdditionalNetwork, device_mode: str, served: pulumi.Resource) -> pulumi.Output[str]:
        """One parameter set and the Network on it; the name comes from the Network, so that its users wait for it."""
        timeouts = pulumi.CustomTimeouts(delete=DELETE_TIMEOUT)

        def made(kind: str, spec: dict[str, Any], after: pulumi.Resource) -> pulumi.Resource:
            return kubernetes.apiextensions.CustomResource(
                name,
                api_version=API_VERSION,
                kind=kind,
                metadata={"name": name},
                spec=spec,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[after], custom_timeouts=timeouts),
            )

        parameters = made("GKENetworkParamSet", parameter_set_spec(nic, device_mode), served)
        # A finalizer holds the set until no Network refers to it, so the Network is made last and deleted first.
        network = made("Network", network_spec(name), parameters)
        return network.urn.apply(lambda _: name)


def parameter_set_spec(nic: AdditionalNetwork, device_mode: str) -> dict[str, Any]:
    """Spec of a GKENetworkParamSet (GoogleCloudPlatform/gke-networking-api, gkenetworkparamset_types.go)."""
    return {"vpc": nic.network, "vpcSubnet": nic.subnetwork, "deviceMode": device_mode}


def network_spec(name: str) -> dict[str, Any]:
    """Spec of the Network on the parameter set of the same name (gke-networking-api, network_types.go)."""
    return {
        "type": "Device",
        "parametersRef": {"group": "networking.gke.io", "kind": "GKENetworkParamSet", "name": name},
    }
