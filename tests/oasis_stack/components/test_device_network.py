"""The DeviceNetworks component: NICs in order, and deletion in the order that GKE's finalizers need."""

from __future__ import annotations

from oasis_stack.command_line.offline import Deployment

NETWORK = "kubernetes:networking.gke.io/v1:Network"
PARAMETERS = "kubernetes:networking.gke.io/v1:GKENetworkParamSet"
NAMES = ["gvnic-1", *(f"rdma-{i}" for i in range(8))]


def test_each_nic_has_a_parameter_set_on_its_own_subnet_and_a_network_of_the_same_name(full: Deployment) -> None:
    assert {found.inputs["metadata"]["name"]: found.inputs["spec"] for found in full.of_type(PARAMETERS)} == {
        "gvnic-1": {"vpc": "rdma-gvnic-1a2b3c4", "vpcSubnet": "rdma-gvnic-1a2b3c4", "deviceMode": "NetDevice"},
        **{
            name: {"vpc": "rdma-rdma-1a2b3c4", "vpcSubnet": f"rdma-{name}-1a2b3c4", "deviceMode": "RDMA"}
            for name in NAMES[1:]
        },
    }
    for network in full.of_type(NETWORK):
        assert network.inputs["spec"] == {
            "type": "Device",
            "parametersRef": {
                "group": "networking.gke.io",
                "kind": "GKENetworkParamSet",
                "name": network.inputs["metadata"]["name"],
            },
        }
    assert full.only("oasis:index:DeviceNetworks").outputs == {"network_names": NAMES}


def test_a_network_goes_before_its_parameter_set_and_both_have_time_for_it(full: Deployment) -> None:
    for name in NAMES:
        network, parameters = full.get(NETWORK, name), full.get(PARAMETERS, name)
        assert full.is_before(parameters, network)
        assert network.timeouts["delete"] == parameters.timeouts["delete"] == "20m"


def test_nothing_is_made_before_the_cluster_knows_both_kinds(full: Deployment) -> None:
    served = full.get("pulumi-python:dynamic/wait:CustomResourcesServed", "devices")
    assert set(served.inputs["kinds"]) == {"networks.networking.gke.io", "gkenetworkparamsets.networking.gke.io"}
    assert all(full.is_before(served, made) for made in full.of_type(PARAMETERS))
