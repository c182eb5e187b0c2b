"""The further networks of nodes with RDMA NICs: one VPC for the second gVNIC, one RoCE VPC with a subnet per NIC.

The RoCE VPC lives in one zone and takes no firewall rule, router, NAT or peering (Google Cloud documentation, "RDMA
network profiles" and "Cloud NGFW for RoCE VPC networks"). Its profile is fixed at creation: another zone replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.node_config import AdditionalNetwork
from oasis_stack.facts.address_plan import AddressPlan
from oasis_stack.facts.machine import RDMA_MTU
from oasis_stack.facts.site import Site

TIMEOUTS = pulumi.CustomTimeouts(create="20m", update="20m", delete="30m")
"""A NIC's address is released some time after its node is gone, later than the provider's own timeout."""


@dataclass(frozen=True, kw_only=True)
class RdmaNetworkArgs:
    """Arguments of the gVNIC VPC and the RDMA VPC."""

    site: Site
    """Location of the stack; a node in another zone cannot attach a NIC to the RDMA VPC."""
    addresses: AddressPlan
    """Ranges of the second gVNIC and of each RDMA NIC, in NIC order: subnet `i` carries NIC `i` of every node, and
    NCCL's rings rely on it."""


class RdmaNetwork(pulumi.ComponentResource):
    """Registers the gVNIC VPC with subnet and firewall rule, and the RDMA VPC with one subnet per NIC and no rule."""

    APIS: ClassVar[tuple[str, ...]] = ("compute.googleapis.com",)

    gvnic_network_name: pulumi.Output[str]
    gvnic_subnet_name: pulumi.Output[str]
    rdma_network_name: pulumi.Output[str]
    rdma_subnet_names: list[pulumi.Output[str]]

    def __init__(self, name: str, args: RdmaNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:RdmaNetwork", name, None, opts)
        gvnic = self._network(f"{name}-gvnic", args, None)
        gcp.compute.Firewall(
            f"{name}-gvnic-internal",
            project=args.site.project,
            network=gvnic.id,
            direction="INGRESS",
            source_ranges=[args.addresses.gvnic],
            allows=[{"protocol": protocol} for protocol in ("tcp", "udp", "icmp")],
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS),
        )
        roce = f"projects/{args.site.project}/global/networkProfiles/{args.site.zone}-vpc-roce"
        rdma = self._network(f"{name}-rdma", args, roce)
        gvnic_subnet = self._subnet(f"{name}-gvnic", args, gvnic, args.addresses.gvnic)
        rdma_subnets = [
            self._subnet(f"{name}-rdma-{index}", args, rdma, block) for index, block in enumerate(args.addresses.rdma)
        ]
        self.gvnic_network_name = gvnic.name
        self.gvnic_subnet_name = gvnic_subnet.name
        self.rdma_network_name = rdma.name
        self.rdma_subnet_names = [subnet.name for subnet in rdma_subnets]
        self.register_outputs(
            {
                "gvnic_network_name": self.gvnic_network_name,
                "gvnic_subnet_name": self.gvnic_subnet_name,
                "rdma_network_name": self.rdma_network_name,
                "rdma_subnet_names": self.rdma_subnet_names,
            }
        )

    @property
    def nics(self) -> list[AdditionalNetwork]:
        """Networks of a node's further NICs in interface order: the gVNIC, then RDMA NIC 0, 1, ..."""
        return [
            AdditionalNetwork(network=self.gvnic_network_name, subnetwork=self.gvnic_subnet_name),
            *(AdditionalNetwork(network=self.rdma_network_name, subnetwork=nic) for nic in self.rdma_subnet_names),
        ]

    def _network(self, name: str, args: RdmaNetworkArgs, profile: str | None) -> gcp.compute.Network:
        return gcp.compute.Network(
            name,
            project=args.site.project,
            auto_create_subnetworks=False,
            routing_mode="REGIONAL",
            mtu=RDMA_MTU,
            network_profile=profile,
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS),
        )

    def _subnet(
        self, name: str, args: RdmaNetworkArgs, network: gcp.compute.Network, block: str
    ) -> gcp.compute.Subnetwork:
        return gcp.compute.Subnetwork(
            name,
            project=args.site.project,
            region=args.site.region,
            network=network.id,
            ip_cidr_range=block,
            # A replaced subnet has the same addresses as its successor: both at once overlap, and Google refuses.
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS, delete_before_replace=True),
        )
