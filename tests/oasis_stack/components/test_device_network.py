"""The DeviceNetworks component: NICs in order, and deletion in the order that GKE's finalizers need."""

from __future__ import annotations

from oasis_stack.components.attachments import AdditionalNetwork
from oasis_stack.components.device_network import DeviceNetworks, DeviceNetworksArgs
from tests.support.deployment import Deploy, Deployment

NETWORK = "kubernetes:networking.gke.io/v1:Network"
PARAMETERS = "kubernetes:networking.gke.io/v1:GKENetworkParamSet"
NAMES = ["gvnic-1", *(f"rdma-{i}" for i in range(8))]


def build(deploy: Deploy) -> Deployment:
    args = DeviceNetworksArgs(
        nics=[
            AdditionalNetwork(network="gvnic-vpc", subnetwork="gvnic-subnet"),
            *(AdditionalNetwork(network="rdma-vpc", subnetwork=f"rdma-subnet-{i}") for i in range(8)),
        ],
        kubeconfig="{}",
    )
    return deploy(lambda: DeviceNetworks("devices", args))


def test_each_nic_has_a_parameter_set_on_its_own_subnet_and_a_network_of_the_same_name(deploy: Deploy) -> None:
    deployment = build(deploy)

    assert {
        resource.inputs["metadata"]["name"]: resource.inputs["spec"] for resource in deployment.of_type(PARAMETERS)
    } == {
        "gvnic-1": {"vpc": "gvnic-vpc", "vpcSubnet": "gvnic-subnet", "deviceMode": "NetDevice"},
        **{f"rdma-{i}": {"vpc": "rdma-vpc", "vpcSubnet": f"rdma-subnet-{i}", "deviceMode": "RDMA"} for i in range(8)},
    }
    for network in deployment.of_type(NETWORK):
        assert network.inputs["spec"] == {
            "type": "Device",
            "parametersRef": {
                "group": "networking.gke.io",
                "kind": "GKENetworkParamSet",
                "name": network.inputs["metadata"]["name"],
            },
        }
    assert deployment.only("oasis:index:DeviceNetworks").outputs == {"network_names": NAMES}


def test_a_network_goes_before_its_parameter_set_and_both_have_time_for_it(deploy: Deploy) -> None:
    deployment = build(deploy)

    for name in NAMES:
        network, parameters = deployment.get(NETWORK, name), deployment.get(PARAMETERS, name)
        assert deployment.is_before(parameters, network)
        assert network.timeouts["delete"] == parameters.timeouts["delete"] == "20m"


def test_nothing_is_made_before_the_cluster_knows_both_kinds(deploy: Deploy) -> None:
    deployment = build(deploy)

    (served,) = [resource for resource in deployment if resource.type.endswith(":CustomResourcesServed")]
    assert set(served.inputs["kinds"]) == {"networks.networking.gke.io", "gkenetworkparamsets.networking.gke.io"}
    assert all(deployment.is_before(served, made) for made in deployment.of_type(PARAMETERS))
