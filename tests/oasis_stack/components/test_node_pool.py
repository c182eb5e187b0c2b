"""GPU node pools, in every provisioning mode."""

from __future__ import annotations

from typing import Any

import pytest

from oasis_stack.command_line.offline import Deployment
from tests.support.program import at, deploy_stack
from tests.support.setting_examples import EXAMPLES
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
    assert pool.ignore_changes - {"initialNodeCount", "nodeCount", "upgradeSettings"} == {"nodeConfig.labels"}
    assert pool.replace_on_changes == {"nodeConfig.taints"}


def test_an_h200_node_has_the_disks_drivers_and_guards_that_its_machine_needs(full: Deployment) -> None:
    found = node(full, SPOT)
    assert found["diskType"] == "hyperdisk-balanced"
    assert found["ephemeralStorageLocalSsdConfig"] == {"localSsdCount": 32}
    assert found["guestAccelerators"] == [
        {"type": "nvidia-h200-141gb", "count": 8, "gpuDriverInstallationConfig": {"gpuDriverVersion": "LATEST"}}
    ]
    assert found["gvnic"] == found["gcfsConfig"] == {"enabled": True}
    assert found["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
    assert found["shieldedInstanceConfig"] == {"enableSecureBoot": True, "enableIntegrityMonitoring": True}
    assert found["metadata"] == {"disable-legacy-endpoints": "true"}
    assert full.get(POOL, SPOT).inputs["networkConfig"]["enablePrivateNodes"] is True


def test_flex_start_ends_after_its_hours_is_not_repaired_and_takes_no_reservation(full: Deployment) -> None:
    found = node(full, FLEX)
    assert (found["flexStart"], found["maxRunDuration"], found["spot"]) == (True, "604800s", False)
    assert found["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert full.get(POOL, FLEX).inputs["management"] == {"autoRepair": False, "autoUpgrade": True}


def test_queued_nodes_come_by_request_and_by_no_compute_class(other: Deployment) -> None:
    queued, flex = other.get(POOL, "gpu-queued"), other.get(POOL, f"{FLEX}-24h")
    assert queued.inputs["queuedProvisioning"] == {"enabled": True}
    assert [pool.name for pool in other.of_type(POOL) if "queuedProvisioning" in pool.inputs] == ["gpu-queued"]
    # GKE would grow a pool of the class by the pod, and its pods would take nodes that a job waits for.
    assert not {"labels", "taints"} & set(node(other, "gpu-queued"))
    same = {"flexStart", "spot", "reservationAffinity", "guestAccelerators", "ephemeralStorageLocalSsdConfig"}
    for key in same:
        assert node(other, "gpu-queued").get(key) == node(other, f"{FLEX}-24h").get(key), key
    assert node(other, "gpu-queued")["maxRunDuration"] == "172800s"
    for key in ("management", "networkConfig"):
        assert queued.inputs[key] == flex.inputs[key]


def test_spot_and_reservation_nodes_have_no_end_and_are_repaired(full: Deployment) -> None:
    for name in (SPOT, RESERVED):
        assert not {"flexStart", "maxRunDuration"} & set(node(full, name))
        assert full.get(POOL, name).inputs["management"] == {"autoRepair": True, "autoUpgrade": True}
    assert (node(full, SPOT)["spot"], node(full, RESERVED)["spot"]) == (True, False)
    assert node(full, RESERVED)["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["ours"],
    }


def test_a_block_is_named_by_its_whole_path() -> None:
    ours, theirs = "ours/reservationBlocks/b", "projects/neighbour/reservations/theirs/reservationBlocks/b"
    ladder = [{"mode": "reservation", "reservation": name, "max_nodes": 1} for name in (ours, theirs)]
    deployed = deploy_stack(changed("oasis:gpu.capacity", ladder))
    named = [pool.inputs["nodeConfig"].get("reservationAffinity", {}).get("values") for pool in deployed.of_type(POOL)]
    assert sorted(filter(None, named)) == [[theirs], [f"projects/some-project/reservations/{ours}"]]


def test_compact_placement_is_asked_for_only_where_the_entry_says_so(other: Deployment) -> None:
    assert [pool.name for pool in other.of_type(POOL) if "placementPolicy" in pool.inputs] == ["gpu-reservation-theirs"]


def test_a_machine_without_rdma_reaches_its_pools_has_one_interface_and_its_own_kind_of_disk() -> None:
    example = EXAMPLES["gpu.machine_type"]
    machine = changed("oasis:gpu.machine_type", example.value)
    deployed = deploy_stack(changed("oasis:gpu.capacity[3]", {"mode": "on-demand", "max_nodes": 1}, machine))
    assert at(deployed.get(*example.resource), example.path) == example.shown
    assert deployed.get(POOL, "gpu-on-demand").inputs["networkConfig"] == {"enablePrivateNodes": True}
    found = node(deployed, "gpu-on-demand")
    assert (found["diskType"], found["guestAccelerators"][0]["type"]) == ("pd-balanced", "nvidia-l4")
    assert found["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert not deployed.of_type("oasis:index:RdmaNetwork") + deployed.of_type("oasis:index:DeviceNetworks")
    assert (deployed.exports["rdma_nics"], deployed.exports["gpus_per_node"]) == ("0", "1")
