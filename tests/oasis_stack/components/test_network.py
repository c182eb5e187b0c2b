"""The primary VPC and the networks of the RDMA NICs."""

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.network import range_name

NETWORK, SUBNET = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
FIREWALL, ROUTER, NAT = "gcp:compute/firewall:Firewall", "gcp:compute/router:Router", "gcp:compute/routerNat:RouterNat"
WAIT = "pulumi-python:dynamic/wait:NetworkFree"


def test_rdma_subnets_stand_in_nic_order(full: Deployment) -> None:
    names = full.get("oasis:index:RdmaNetwork", "rdma").outputs["rdma_subnet_names"]
    by_name = {f"{subnet.name}-1a2b3c4": subnet for subnet in full.of_type(SUBNET)}
    rails = [*(f"10.128.{32 * nic}.0/19" for nic in range(1, 8)), "10.129.0.0/19"]
    assert [by_name[name].inputs["ipCidrRange"] for name in names] == rails
    vpc = full.get(NETWORK, "rdma-rdma")
    assert all(vpc.urn in by_name[name].dependencies for name in names)


def test_no_network_makes_subnets_of_its_own(full: Deployment) -> None:
    assert [network.inputs["autoCreateSubnetworks"] for network in full.of_type(NETWORK)] == [False] * 3


def test_only_the_primary_network_has_a_way_out(full: Deployment) -> None:
    assert full.only(ROUTER).property_dependencies["network"] == {full.get(NETWORK, "network").urn}
    assert full.only(NAT).property_dependencies["router"] == {full.only(ROUTER).urn}


def test_nodes_reach_googles_apis_directly_and_the_rest_of_the_world_through_the_nat(full: Deployment) -> None:
    assert full.get(SUBNET, "network-nodes").inputs["privateIpGoogleAccess"] is True
    nat = full.only(NAT).inputs
    assert (nat["natIpAllocateOption"], nat["sourceSubnetworkIpRangesToNat"]) == (
        "AUTO_ONLY",
        "ALL_SUBNETWORKS_ALL_IP_RANGES",
    )
    # Google refuses the first together with the second.
    assert (nat["enableDynamicPortAllocation"], nat["enableEndpointIndependentMapping"]) == (True, False)
    assert nat["logConfig"] == {"enable": True, "filter": "ERRORS_ONLY"}


def test_other_secondary_ranges_have_other_names_and_replace_the_subnet_with_the_cluster_in_it(
    full: Deployment,
) -> None:
    subnet, cluster = full.get(SUBNET, "network-nodes"), full.only("gcp:container/cluster:Cluster")
    assert subnet.replace_on_changes == {"secondaryIpRanges"}
    ranges = {item["rangeName"]: item["ipCidrRange"] for item in subnet.inputs["secondaryIpRanges"]}
    used = cluster.inputs["ipAllocationPolicy"]
    assert ranges == {
        used["clusterSecondaryRangeName"]: "10.96.0.0/14",
        used["servicesSecondaryRangeName"]: "10.64.64.0/20",
    }
    assert range_name("pods", "10.96.0.0/14") in ranges
    assert range_name("pods", "10.100.0.0/14") not in ranges


def test_firewalls_let_in_the_networks_own_ranges_and_nothing_else(full: Deployment) -> None:
    assert {rule.name: rule.inputs["sourceRanges"] for rule in full.of_type(FIREWALL)} == {
        "network-internal": ["10.64.0.0/18", "10.96.0.0/14"],
        "rdma-gvnic-internal": ["10.128.0.0/19"],
    }


def test_within_the_network_every_port_is_open_to_what_nodes_and_pods_speak(full: Deployment) -> None:
    """UDP for names, ICMP for the path's MTU, which is not the internet's; without either pods only seem to work."""
    for rule in full.of_type(FIREWALL):
        assert {allowed["protocol"] for allowed in rule.inputs["allows"]} >= {"tcp", "udp", "icmp"}, rule.name
        assert not any(allowed.get("ports") for allowed in rule.inputs["allows"]), rule.name


def test_load_balancer_proxies_get_their_subnet_and_reach_one_port(full: Deployment, other: Deployment) -> None:
    assert other.get(SUBNET, "network-proxies").inputs["purpose"] == "REGIONAL_MANAGED_PROXY"
    rule = other.get(FIREWALL, "network-proxies").inputs
    assert (rule["sourceRanges"], rule["allows"]) == (["10.48.80.0/23"], [{"protocol": "tcp", "ports": ["8265"]}])
    assert "network-proxies" not in {subnet.name for subnet in full.of_type(SUBNET)}


def test_the_control_plane_reaches_kueue_only_where_there_is_a_queue(full: Deployment, other: Deployment) -> None:
    rule, cluster = other.get(FIREWALL, "network-control-plane"), other.only("gcp:container/cluster:Cluster")
    assert rule.inputs["sourceRanges"] == [cluster.inputs["privateClusterConfig"]["masterIpv4CidrBlock"]]
    # Kueue v0.19.2, charts/kueue/templates: webhook/service.yaml and visibility/service.yaml.
    assert rule.inputs["allows"] == [{"protocol": "tcp", "ports": ["9443", "8082"]}]
    assert "network-control-plane" not in {found.name for found in full.of_type(FIREWALL)}


def test_networks_wait_long_enough_on_delete_and_subnets_make_room_before_their_successor(other: Deployment) -> None:
    parts = [part for part in other if part.type.startswith("gcp:compute/") and "ddress" not in part.type]
    # Longer than the provider's own 20 minutes, which Google's release of addresses and rules outlasts.
    for part in parts:
        assert 20 < int(part.timeouts["delete"].removesuffix("m")) <= 60, part.name
    assert {part.name for part in parts if part.delete_before_replace} == {part.name for part in other.of_type(SUBNET)}
