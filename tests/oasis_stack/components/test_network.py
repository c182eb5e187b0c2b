"""The primary VPC and the networks of the RDMA NICs."""

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.network import range_name

NETWORK, SUBNET = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
FIREWALL, ROUTER, NAT = "gcp:compute/firewall:Firewall", "gcp:compute/router:Router", "gcp:compute/routerNat:RouterNat"


def test_no_network_makes_subnets_of_its_own(full: Deployment) -> None:
    assert [network.inputs["autoCreateSubnetworks"] for network in full.of_type(NETWORK)] == [False] * 3


def test_nodes_reach_googles_apis_directly_and_the_rest_of_the_world_through_the_one_nat(full: Deployment) -> None:
    assert full.get(SUBNET, "network-nodes").inputs["privateIpGoogleAccess"] is True
    assert full.only(ROUTER).property_dependencies["network"] == {full.get(NETWORK, "network").urn}
    assert full.only(NAT).property_dependencies["router"] == {full.only(ROUTER).urn}
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
    assert subnet.replace_on_changes == {"secondaryIpRanges[0]", "secondaryIpRanges[1]"}
    ranges = {item["rangeName"]: item["ipCidrRange"] for item in subnet.inputs["secondaryIpRanges"]}
    used = cluster.inputs["ipAllocationPolicy"]
    assert ranges == {
        used["clusterSecondaryRangeName"]: "10.96.0.0/14",
        used["servicesSecondaryRangeName"]: "10.64.64.0/20",
    }
    assert range_name("pods", "10.96.0.0/14") in ranges
    assert range_name("pods", "10.100.0.0/14") not in ranges


def test_firewalls_let_in_the_networks_own_ranges_proxies_the_control_plane_and_nothing_else(
    full: Deployment, other: Deployment
) -> None:
    ours, theirs = (
        {
            rule.name: (rule.inputs["sourceRanges"], {(one["protocol"], *one.get("ports", ())) for one in allowed})
            for rule in deployed.of_type(FIREWALL)
            if (allowed := rule.inputs["allows"])
        }
        for deployed in (full, other)
    )
    # UDP for names, ICMP for the path's MTU, which is not the internet's; without either pods only seem to work.
    everything = {("tcp",), ("udp",), ("icmp",)}
    internal = {"network-internal": ["10.64.0.0/18", "10.96.0.0/14"], "rdma-gvnic-internal": ["10.128.0.0/19"]}
    assert ours == {name: (ranges, everything) for name, ranges in internal.items()}
    cluster = other.only("gcp:container/cluster:Cluster").inputs["privateClusterConfig"]
    assert {name: theirs[name] for name in theirs.keys() - internal.keys()} == {
        "network-proxies": (["10.48.80.0/23"], {("tcp", "8265")}),
        # Kueue v0.19.2, charts/kueue/templates: webhook/service.yaml and visibility/service.yaml.
        "network-control-plane": ([cluster["masterIpv4CidrBlock"]], {("tcp", "9443", "8082")}),
    }
    assert other.get(SUBNET, "network-proxies").inputs["purpose"] == "REGIONAL_MANAGED_PROXY"


def test_networks_wait_long_enough_on_delete_and_subnets_make_room_before_their_successor(other: Deployment) -> None:
    parts = [part for part in other if part.type.startswith("gcp:compute/") and "ddress" not in part.type]
    # Longer than the provider's own 20 minutes, which Google's release of addresses and rules outlasts.
    for part in parts:
        assert 20 < int(part.timeouts["delete"].removesuffix("m")) <= 60, part.name
    assert {part.name for part in parts if part.delete_before_replace} == {part.name for part in other.of_type(SUBNET)}
