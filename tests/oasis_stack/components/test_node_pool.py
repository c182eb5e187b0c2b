"""GPU node pools, in every provisioning mode."""

from __future__ import annotations

from typing import Any

import pytest

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.node_config import POOL_IGNORES
from tests.support.program import at, deploy_stack
from tests.support.setting_examples import EXAMPLES, GPU_GROUP, RAY
from tests.support.stacks import changed

POOL = "gcp:container/nodePool:NodePool"
RESERVED, FLEX, SPOT = "gpu-reservation-ours", "gpu-flex-start", "gpu-spot"


def node(deployed: Deployment, pool: str) -> dict[str, Any]:
    return deployed.get(POOL, pool).inputs["nodeConfig"]


@pytest.mark.parametrize("name", [RESERVED, FLEX, SPOT])
def test_a_pool_scales_from_no_nodes_and_keeps_what_gke_counts_and_labels(full: Deployment, name: str) -> None:
    pool = full.get(POOL, name)
    assert pool.inputs["autoscaling"]["locationPolicy"] == "ANY"
    if name == FLEX:
        # GKE has a strategy of its own there, which no input could ever equal.
        assert "upgradeSettings" not in pool.inputs and "upgradeSettings" in pool.ignore_changes
    else:
        # There is no spare capacity from which to add a node before one is taken away.
        assert pool.inputs["upgradeSettings"] == {"strategy": "SURGE", "maxSurge": 0, "maxUnavailable": 1}
    # A changed class must still reach label and taint: by a new pool, as the labels, to which GKE adds, are ignored.
    assert pool.ignore_changes - {*POOL_IGNORES, "upgradeSettings"} == {"nodeConfig.labels"}
    assert pool.replace_on_changes == {"nodeConfig.taints"}


def test_every_node_has_the_guards_and_an_h200_node_its_local_disks(other: Deployment) -> None:
    for maker in (other.only("gcp:container/cluster:Cluster"), *other.of_type(POOL)):
        found = maker.inputs["nodeConfig"]
        assert found["gvnic"] == found["gcfsConfig"] == {"enabled": True}, maker.name
        assert found["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
        assert found["shieldedInstanceConfig"] == {"enableSecureBoot": True, "enableIntegrityMonitoring": True}
        assert found["metadata"] == {"disable-legacy-endpoints": "true"}
        kubelet = {"insecureKubeletReadonlyPortEnabled": "FALSE", "singleProcessOomKill": True}
        assert found["kubeletConfig"] == kubelet
        disks = {"localSsdCount": 32} if maker.name.startswith("gpu-") else None
        assert found.get("ephemeralStorageLocalSsdConfig") == disks, maker.name


def test_nodes_without_an_end_are_repaired_and_a_reservation_is_named_under_googles_key(full: Deployment) -> None:
    for name in (SPOT, RESERVED):
        assert full.get(POOL, name).inputs["management"] == {"autoRepair": True, "autoUpgrade": True}
    assert node(full, RESERVED)["reservationAffinity"]["key"] == "compute.googleapis.com/reservation-name"


def test_a_block_is_named_by_its_whole_path() -> None:
    ours, theirs = "ours/reservationBlocks/b", "projects/neighbour/reservations/theirs/reservationBlocks/b"
    ladder = [{"mode": "reservation", "reservation": name, "max_nodes": 1} for name in (ours, theirs)]
    deployed = deploy_stack(changed("oasis:gpu.capacity", ladder))
    named = [pool.inputs["nodeConfig"].get("reservationAffinity", {}).get("values") for pool in deployed.of_type(POOL)]
    assert sorted(filter(None, named)) == [[theirs], [f"projects/some-project/reservations/{ours}"]]


def test_a_machine_without_rdma_reaches_its_pools_has_one_interface_no_gib_and_its_own_kind_of_disk() -> None:
    example = EXAMPLES["gpu.machine_type"]
    machine = changed("oasis:gpu.machine_type", example.value)
    deployed = deploy_stack(changed("oasis:gpu.capacity[3]", {"mode": "on-demand", "max_nodes": 1}, machine))
    assert at(deployed.get(*example.resource), example.path) == example.shown
    assert deployed.get(POOL, "gpu-on-demand").inputs["networkConfig"] == {"enablePrivateNodes": True}
    found = node(deployed, "gpu-on-demand")
    assert (found["diskType"], found["guestAccelerators"][0]["type"]) == ("pd-balanced", "nvidia-l4")
    assert found["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert not deployed.of_type("oasis:index:RdmaNetwork") + deployed.of_type("oasis:index:DeviceNetworks")
    worker = at(deployed.get(*RAY), f"{GPU_GROUP}.template")
    assert not any(key.startswith("networking.gke.io") for key in worker["metadata"]["annotations"])
    assert "initContainers" not in worker["spec"] and "command" not in worker["spec"]["containers"][0]
    assert "gib" not in {volume["name"] for volume in worker["spec"]["volumes"]}
    assert (deployed.exports["rdma_nics"], deployed.exports["gpus_per_node"]) == ("0", "1")
