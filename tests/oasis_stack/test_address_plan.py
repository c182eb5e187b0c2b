"""Every range of the stack comes out of three blocks, apart from each other and large enough."""

from __future__ import annotations

import itertools
from ipaddress import IPv4Network
from typing import Any

import pytest

from oasis_stack.facts.address_plan import AddressPlan, plan
from oasis_stack.facts.problem import SettingsError


def cut(
    primary: str = "10.64.0.0/16",
    pods: str = "10.96.0.0/14",
    device: str = "10.128.0.0/15",
    gpu_nodes: int = 8,
    other_nodes: int = 9,
    rdma_nics: int = 8,
) -> AddressPlan:
    return plan(primary, pods, device, gpu_nodes, other_nodes, rdma_nics)


def refused(**changes: Any) -> set[str]:
    with pytest.raises(SettingsError) as caught:
        cut(**changes)
    return {problem.key for problem in caught.value.problems}


def test_the_default_blocks_give_these_ranges() -> None:
    assert cut().ranges() == {
        "nodes": "10.64.0.0/18",
        "services": "10.64.64.0/20",
        "proxy_only": "10.64.80.0/23",
        "peering": "10.64.82.0/24",
        "control_plane": "10.64.83.0/28",
        "pods": "10.96.0.0/14",
        "gvnic": "10.128.0.0/19",
        **{f"rdma-{nic}": str(block) for nic, block in enumerate(list(IPv4Network("10.128.0.0/15").subnets(4))[1:9])},
    }


@pytest.mark.parametrize(
    "blocks",
    [
        ("10.0.0.0/12", "10.128.0.0/9", "100.64.0.0/10"),
        ("10.0.0.0/16", "10.128.0.0/14", "172.16.0.0/15"),
        ("10.0.0.0/19", "10.128.0.0/21", "172.16.0.0/25"),
    ],
    ids=str,
)
def test_ranges_of_any_size_of_block_are_apart_and_inside_it(blocks: tuple[str, str, str]) -> None:
    found = cut(*blocks, gpu_nodes=4, other_nodes=4).ranges()

    networks = {name: IPv4Network(text) for name, text in found.items()}
    for (one, first), (other, second) in itertools.combinations(networks.items(), 2):
        assert not first.overlaps(second), (one, other)
    homes = dict.fromkeys(found, blocks[2]) | {"pods": blocks[1]}
    homes |= dict.fromkeys(("nodes", "services", "proxy_only", "peering", "control_plane"), blocks[0])
    assert all(network.subnet_of(IPv4Network(homes[name])) for name, network in networks.items())
    assert networks["control_plane"].prefixlen == 28
    assert networks["proxy_only"].prefixlen <= 26
    assert networks["peering"].prefixlen <= 29
    assert networks["services"].prefixlen >= 16


def test_a_larger_pool_moves_no_range() -> None:
    assert cut(gpu_nodes=1, other_nodes=1) == cut(gpu_nodes=500, other_nodes=500)


def test_ranges_follow_the_number_of_rdma_nics_and_nothing_else_does() -> None:
    with_nics, without = cut(rdma_nics=8), cut(rdma_nics=0)

    assert (len(with_nics.rdma), without.rdma) == (8, ())
    assert {name: text for name, text in with_nics.ranges().items() if "rdma" not in name} == without.ranges()


def test_each_block_holds_as_many_nodes_as_its_narrowest_range_and_one_more_is_refused() -> None:
    # /28 of the device block has 12 usable addresses per NIC, /20 of pods 16 nodes, /19 of the primary block 2,044.
    assert cut(device="10.128.0.0/24", gpu_nodes=12)
    assert refused(device="10.128.0.0/24", gpu_nodes=13) == {"network.device_block"}
    assert cut(pods="10.96.0.0/20", gpu_nodes=8, other_nodes=8)
    assert refused(pods="10.96.0.0/20", gpu_nodes=8, other_nodes=9) == {"network.pods_block"}
    assert cut("10.64.0.0/19", "10.128.0.0/9", "10.0.0.0/12", gpu_nodes=1000, other_nodes=1044)
    assert refused(
        primary="10.64.0.0/19", pods="10.128.0.0/9", device="10.0.0.0/12", gpu_nodes=1000, other_nodes=1045
    ) == {"network.primary_block"}


def test_bad_blocks_are_all_named_at_once() -> None:
    assert refused(primary="10.64.0.0/16.0", pods="8.0.0.0/14", device="10.128.0.0/8") == {
        "network.primary_block",
        "network.pods_block",
        "network.device_block",
    }


def test_a_primary_block_whose_services_gke_would_not_take_is_refused() -> None:
    assert cut(primary="10.0.0.0/12").services == "10.4.0.0/16"
    assert refused(primary="10.0.0.0/11") == {"network.primary_block"}


def test_overlapping_blocks_are_named_in_pairs() -> None:
    assert refused(primary="10.96.0.0/16") == {"network.pods_block"}
    assert refused(primary="10.96.0.0/16", device="10.96.0.0/15") == {"network.pods_block", "network.device_block"}
