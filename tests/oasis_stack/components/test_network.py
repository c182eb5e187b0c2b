"""The primary VPC and the networks of the RDMA NICs."""

from dataclasses import replace

import pulumi_gcp as gcp

from oasis_stack.components.network import Network, NetworkArgs
from oasis_stack.components.rdma_network import RdmaNetwork, RdmaNetworkArgs
from oasis_stack.facts.address_plan import AddressPlan
from tests.support.deployment import Deploy, Deployment
from tests.support.stacks import SITE

NETWORK, SUBNET = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
FIREWALL, ROUTER, NAT = "gcp:compute/firewall:Firewall", "gcp:compute/router:Router", "gcp:compute/routerNat:RouterNat"
WAIT = "pulumi-python:dynamic/wait:NetworkFree"
RDMA_RANGES = [f"10.128.{index}.0/24" for index in range(8)]
ADDRESSES = AddressPlan(
    nodes="10.64.0.0/20",
    services="10.64.16.0/20",
    proxy_only="10.64.32.0/24",
    peering="10.64.49.0/24",
    control_plane="10.64.48.0/28",
    pods="10.96.0.0/14",
    gvnic="10.129.0.0/24",
    rdma=tuple(RDMA_RANGES),
)


def _primary(addresses: AddressPlan = ADDRESSES, proxied_port: int | None = None) -> Network:
    return Network("network", NetworkArgs(site=SITE, addresses=addresses, proxied_port=proxied_port))


def _rdma() -> RdmaNetwork:
    return RdmaNetwork("rdma-network", RdmaNetworkArgs(site=SITE, addresses=ADDRESSES))


def _both(deploy: Deploy, proxied_port: int | None = None) -> Deployment:
    def program() -> None:
        _primary(proxied_port=proxied_port)
        _rdma()

    return deploy(program)


def minutes(text: str) -> int:
    """Of a timeout: `30m`."""
    return int(text.removesuffix("m"))


def test_rdma_subnets_stand_in_nic_order_in_a_vpc_of_the_zones_roce_profile(deploy: Deploy) -> None:
    seen = _both(deploy)
    vpc = seen.get(NETWORK, "rdma-network-rdma")
    assert vpc.inputs["networkProfile"] == "projects/project-a/global/networkProfiles/us-central1-b-vpc-roce"
    component = seen.get("oasis:index:RdmaNetwork", "rdma-network")
    names = component.outputs["rdma_subnet_names"]
    by_name = {f"{subnet.name}-1a2b3c4": subnet for subnet in seen.of_type(SUBNET)}
    assert [by_name[name].inputs["ipCidrRange"] for name in names] == RDMA_RANGES
    assert all(vpc.urn in by_name[name].dependencies for name in names)


def test_every_network_of_a_gpu_node_carries_the_same_large_packets(deploy: Deploy) -> None:
    networks = _both(deploy).of_type(NETWORK)
    assert len(networks) == 3
    assert {network.inputs["mtu"] for network in networks} == {8896}
    assert {network.inputs["autoCreateSubnetworks"] for network in networks} == {False}


def test_the_rdma_vpc_has_no_firewall_router_or_nat_and_only_the_primary_one_has_a_way_out(deploy: Deploy) -> None:
    seen = _both(deploy, proxied_port=8265)
    rdma, primary = seen.get(NETWORK, "rdma-network-rdma"), seen.get(NETWORK, "network")
    users = [resource for resource in seen if rdma.urn in resource.dependencies]
    assert {resource.type for resource in users} == {SUBNET}
    assert seen.only(ROUTER).property_dependencies["network"] == {primary.urn}
    assert seen.only(NAT).property_dependencies["router"] == {seen.only(ROUTER).urn}


def test_nodes_reach_googles_apis_directly_and_the_rest_of_the_world_through_the_nat(deploy: Deploy) -> None:
    seen = _both(deploy)
    assert seen.get(SUBNET, "network-nodes").inputs["privateIpGoogleAccess"] is True
    nat = seen.only(NAT).inputs
    assert (nat["natIpAllocateOption"], nat["sourceSubnetworkIpRangesToNat"]) == (
        "AUTO_ONLY",
        "ALL_SUBNETWORKS_ALL_IP_RANGES",
    )
    # Google refuses the first together with the second.
    assert (nat["enableDynamicPortAllocation"], nat["enableEndpointIndependentMapping"]) == (True, False)
    assert nat["logConfig"] == {"enable": True, "filter": "ERRORS_ONLY"}


def test_other_secondary_ranges_have_other_names_and_replace_the_subnet_with_the_cluster_in_it(deploy: Deploy) -> None:
    def names(addresses: AddressPlan = ADDRESSES, proxied_port: int | None = None) -> dict[str, str]:
        seen = deploy(lambda: _primary(addresses, proxied_port))
        subnet = seen.get(SUBNET, "network-nodes")
        assert subnet.replace_on_changes == {"secondaryIpRanges"}
        ranges = {item["ipCidrRange"]: item["rangeName"] for item in subnet.inputs["secondaryIpRanges"]}
        told = seen.get("oasis:index:Network", "network").outputs
        assert list(ranges.values()) == [told["pods_range_name"], told["services_range_name"]]
        return ranges

    one, same, moved = names(), names(proxied_port=8265), names(replace(ADDRESSES, pods="10.100.0.0/14"))
    assert one == same
    assert moved["10.100.0.0/14"] not in one.values()
    assert moved["10.64.16.0/20"] == one["10.64.16.0/20"]


def test_firewalls_let_in_the_networks_own_ranges_and_nothing_else(deploy: Deploy) -> None:
    sources = {rule.name: rule.inputs["sourceRanges"] for rule in _both(deploy).of_type(FIREWALL)}
    assert sources == {
        "network-internal": ["10.64.0.0/20", "10.96.0.0/14"],
        "rdma-network-gvnic-internal": ["10.129.0.0/24"],
    }


def test_within_the_network_every_port_is_open_to_what_nodes_and_pods_speak(deploy: Deploy) -> None:
    """UDP for names, ICMP for the path's MTU, which is not the internet's; without either pods only seem to work."""
    for rule in _both(deploy).of_type(FIREWALL):
        assert {allowed["protocol"] for allowed in rule.inputs["allows"]} >= {"tcp", "udp", "icmp"}, rule.name
        assert not any(allowed.get("ports") for allowed in rule.inputs["allows"]), rule.name


def test_load_balancer_proxies_get_their_subnet_and_reach_one_port(deploy: Deploy) -> None:
    seen = _both(deploy, proxied_port=8265)
    assert seen.get(SUBNET, "network-proxies").inputs["purpose"] == "REGIONAL_MANAGED_PROXY"
    rule = seen.get(FIREWALL, "network-proxies").inputs
    assert (rule["sourceRanges"], rule["allows"]) == (["10.64.32.0/24"], [{"protocol": "tcp", "ports": ["8265"]}])
    assert "network-proxies" not in {subnet.name for subnet in _both(deploy).of_type(SUBNET)}


def test_who_takes_the_networks_id_goes_before_the_wait_and_the_wait_before_every_part_of_the_network(
    deploy: Deploy,
) -> None:
    def program() -> None:
        gcp.container.Cluster("user", location="us-central1", network=_primary().network_id)

    seen = deploy(program)
    user, wait = seen.get("gcp:container/cluster:Cluster", "user"), seen.get(WAIT, "network")
    assert user.inputs["network"] == "projects/project-a/global/networks/network-1a2b3c4"
    assert seen.is_before(wait, user)
    parts = [part for part in seen.children(seen.get("oasis:index:Network", "network")) if part != wait]
    assert len(parts) == 5
    assert all(seen.is_before(part, wait) for part in parts)


def test_networks_wait_long_enough_on_delete_and_subnets_make_room_before_their_successor(deploy: Deploy) -> None:
    seen = _both(deploy, proxied_port=8265)
    parts = [part for part in seen if part.type.startswith("gcp:compute/")]
    # Longer than the provider's own 20 minutes, which Google's release of addresses and rules outlasts.
    for part in parts:
        assert 20 < minutes(part.timeouts["delete"]) <= 60, part.name
    assert {part.name for part in parts if part.delete_before_replace} == {part.name for part in seen.of_type(SUBNET)}
