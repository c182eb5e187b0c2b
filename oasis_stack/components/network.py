"""The primary VPC: first interface of every node, pods, Services, and the only way out to the internet.

Replaced when changed: region, a subnet whose range moves or shrinks, and the nodes' subnet with its secondary ranges,
which replaces the cluster in it as well; a range that grows, MTU and firewalls in place
(hashicorp/terraform-provider-google 2026-08-21, resource_compute_network.go, ..._subnetwork.go).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.node_config import ClusterNetwork
from oasis_stack.facts.address_plan import AddressPlan
from oasis_stack.facts.machine import RDMA_MTU
from oasis_stack.facts.site import Site
from oasis_stack.wait import NetworkFree

TIMEOUTS = pulumi.CustomTimeouts(create="20m", update="20m", delete="30m")
"""Google releases addresses and rules some time after their users are gone, later than the provider's own timeouts."""

CLEANUP_MINUTES = 30
"""GKE's asynchronous cleanup was seen to take 10 minutes and more (decisionbox-io/decisionbox-platform, PR 87)."""


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """Arguments of the primary VPC."""

    site: Site
    """Where the stack stands."""
    addresses: AddressPlan
    """Ranges of the nodes, the pods, the Services and the proxies. Once the nodes' range is full, or the pods' range
    has no /24 left, no further node comes up."""
    proxied_port: int | None
    """TCP port of the pods that proxies of an internal application load balancer reach; if it is not the pods' port,
    the load balancer answers 502. None: no such proxies, and no subnet for them."""
    control_plane_ports: Sequence[int]
    """Further TCP ports of nodes and pods at which the control plane calls webhooks and APIs in the cluster: GKE itself
    opens 443 and 10250 alone (Google Cloud documentation, "Automatically created firewall rules")."""


class Network(pulumi.ComponentResource):
    """Registers the primary VPC with its subnets, router, NAT and firewall rules, and the wait for GKE's cleanup."""

    APIS: ClassVar[tuple[str, ...]] = ("compute.googleapis.com",)

    network_id: pulumi.Output[str]
    network_name: pulumi.Output[str]
    subnet_id: pulumi.Output[str]
    subnet_name: pulumi.Output[str]
    pods_range_name: pulumi.Output[str]
    services_range_name: pulumi.Output[str]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Network", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS)
        pods, services = range_name("pods", args.addresses.pods), range_name("services", args.addresses.services)
        vpc = gcp.compute.Network(
            name,
            project=args.site.project,
            auto_create_subnetworks=False,
            routing_mode="REGIONAL",
            mtu=RDMA_MTU,
            opts=child,
        )
        nodes = gcp.compute.Subnetwork(
            f"{name}-nodes",
            project=args.site.project,
            region=args.site.region,
            network=vpc.id,
            ip_cidr_range=args.addresses.nodes,
            secondary_ip_ranges=[
                {"range_name": pods, "ip_cidr_range": args.addresses.pods},
                {"range_name": services, "ip_cidr_range": args.addresses.services},
            ],
            # Nodes have no public address; this lets them reach Google's APIs without the NAT.
            private_ip_google_access=True,
            opts=self._nodes_options(),
        )
        way_out = self._way_out(name, args, vpc)
        rules = self._firewall(name, args, vpc)
        subnets = [nodes, *self._proxy_subnet(name, args, vpc)]
        # The cluster takes the network's id from this waiter, so that a destroy deletes the cluster, then waits, then
        # deletes everything here: a network that GKE's rules still use cannot be deleted.
        free = NetworkFree(
            name,
            args.site.project,
            vpc.name,
            CLEANUP_MINUTES,
            pulumi.ResourceOptions(parent=self, depends_on=[*subnets, *way_out, *rules]),
        )
        self.network_id = pulumi.Output.all(vpc.id, free.id).apply(lambda ids: ids[0])
        self.network_name = vpc.name
        self.subnet_id = nodes.id
        self.subnet_name = nodes.name
        self.pods_range_name = pulumi.Output.from_input(pods)
        self.services_range_name = pulumi.Output.from_input(services)
        self.register_outputs(
            {
                "network_id": self.network_id,
                "network_name": self.network_name,
                "subnet_id": self.subnet_id,
                "subnet_name": self.subnet_name,
                "pods_range_name": self.pods_range_name,
                "services_range_name": self.services_range_name,
            }
        )

    @property
    def for_cluster(self) -> ClusterNetwork:
        """Arguments that attach a cluster to this VPC."""
        return ClusterNetwork(
            network_id=self.network_id,
            subnet_id=self.subnet_id,
            pods_range_name=self.pods_range_name,
            services_range_name=self.services_range_name,
        )

    def _subnet_options(self) -> pulumi.ResourceOptions:
        # A replaced subnet has the same addresses as its successor: both at once overlap, and Google refuses.
        return pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS, delete_before_replace=True)

    def _nodes_options(self) -> pulumi.ResourceOptions:
        ranges = [f"secondaryIpRanges[{index}]" for index in range(2)]
        own = pulumi.ResourceOptions(
            # The provider would change them in place, which Google refuses while a cluster uses them. Only these two: a
            # range that was added for more pods must not replace the cluster.
            replace_on_changes=ranges,
            # GKE was seen to reserve the ranges that it uses (terraform-google-modules/terraform-google-network pull
            # request 693). The provider would undo that, and for the nodes' own range replace the subnet.
            ignore_changes=["reservedInternalRange", *(f"{one}.reservedInternalRange" for one in ranges)],
        )
        return pulumi.ResourceOptions.merge(self._subnet_options(), own)

    def _proxy_subnet(self, name: str, args: NetworkArgs, vpc: gcp.compute.Network) -> list[pulumi.Resource]:
        if args.proxied_port is None:
            return []
        subnet = gcp.compute.Subnetwork(
            f"{name}-proxies",
            project=args.site.project,
            region=args.site.region,
            network=vpc.id,
            ip_cidr_range=args.addresses.proxy_only,
            purpose="REGIONAL_MANAGED_PROXY",
            role="ACTIVE",
            opts=self._subnet_options(),
        )
        return [subnet]

    def _way_out(self, name: str, args: NetworkArgs, vpc: gcp.compute.Network) -> list[pulumi.Resource]:
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS)
        router = gcp.compute.Router(
            f"{name}-router", project=args.site.project, region=args.site.region, network=vpc.id, opts=child
        )
        nat = gcp.compute.RouterNat(
            f"{name}-nat",
            project=args.site.project,
            region=args.site.region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            # A node that pulls packages with hundreds of processes runs out of the 64 ports of static allocation.
            enable_dynamic_port_allocation=True,
            enable_endpoint_independent_mapping=False,
            log_config={"enable": True, "filter": "ERRORS_ONLY"},
            opts=child,
        )
        return [router, nat]

    def _firewall(self, name: str, args: NetworkArgs, vpc: gcp.compute.Network) -> list[pulumi.Resource]:
        """Firewall rules for the stack's own ranges; the VPC's implied rule denies all other incoming traffic."""

        def allow(role: str, sources: list[str], ports: list[tuple[str, list[str]]]) -> pulumi.Resource:
            return gcp.compute.Firewall(
                f"{name}-{role}",
                project=args.site.project,
                network=vpc.id,
                direction="INGRESS",
                source_ranges=sources,
                allows=[{"protocol": protocol, "ports": numbers} for protocol, numbers in ports],
                opts=pulumi.ResourceOptions(parent=self, custom_timeouts=TIMEOUTS),
            )

        rules = [
            allow("internal", [args.addresses.nodes, args.addresses.pods], [("tcp", []), ("udp", []), ("icmp", [])])
        ]
        if args.proxied_port is not None:
            rules.append(allow("proxies", [args.addresses.proxy_only], [("tcp", [str(args.proxied_port)])]))
        if args.control_plane_ports:
            ports = [str(port) for port in args.control_plane_ports]
            rules.append(allow("control-plane", [args.addresses.control_plane], [("tcp", ports)]))
        return rules


def range_name(role: str, block: str) -> str:
    """Name of a secondary range, different for different addresses: a new name replaces the cluster, and only so does a
    plan show that new addresses mean a new cluster."""
    return f"{role}-{hashlib.sha256(block.encode()).hexdigest()[:7]}"


@dataclass(frozen=True, kw_only=True)
class InternalAddressArgs:
    """Arguments of a reserved address."""

    site: Site
    """Where the stack stands."""
    subnet_id: pulumi.Input[str]
    """Subnet whose range the address is taken from; the load balancer must be in the same one."""


class InternalAddress(pulumi.ComponentResource):
    """Registers one reserved internal address."""

    APIS: ClassVar[tuple[str, ...]] = ("compute.googleapis.com",)

    address: pulumi.Output[str]

    def __init__(self, name: str, args: InternalAddressArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:InternalAddress", name, None, opts)
        reserved = gcp.compute.Address(
            name,
            project=args.site.project,
            region=args.site.region,
            subnetwork=args.subnet_id,
            address_type="INTERNAL",
            purpose="GCE_ENDPOINT",
            labels=dict(args.site.labels),
            opts=pulumi.ResourceOptions(
                parent=self,
                # Google releases it some time after the load balancer is gone.
                custom_timeouts=pulumi.CustomTimeouts(create="20m", update="20m", delete="20m"),
            ),
        )
        self.address = reserved.address
        self.register_outputs({"address": self.address})
