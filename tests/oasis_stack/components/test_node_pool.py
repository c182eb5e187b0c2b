"""GPU node pools, in every provisioning mode."""

from typing import Any, Literal

import pytest

from oasis_stack.components.attachments import AdditionalNetwork
from oasis_stack.components.node_pool import GKE_LABELS, GpuNodePool, GpuNodePoolArgs
from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.facts.machine import MACHINES
from tests.support.deployment import Deploy, Registered
from tests.support.stacks import SITE

H200 = "a3-ultragpu-8g"
NICS = [AdditionalNetwork(network="gvnic", subnetwork="gvnic")] + [
    AdditionalNetwork(network="rdma", subnetwork=f"rdma-{index}") for index in range(8)
]


def _entry(mode: Literal["reservation", "flex-start", "spot", "on-demand"], **changes: Any) -> CapacityEntry:
    arguments: dict[str, Any] = {
        "mode": mode,
        "max_nodes": 4,
        "max_run_duration_hours": 168 if mode == "flex-start" else None,
        "reservation": "block-7" if mode == "reservation" else None,
        "compact_placement": False,
    }
    return CapacityEntry(**(arguments | changes))


def _pool(deploy: Deploy, entry: CapacityEntry, machine: str = H200) -> Registered:
    def program() -> None:
        GpuNodePool(
            "gpu",
            GpuNodePoolArgs(
                site=SITE,
                cluster_name="cluster-a",
                machine=MACHINES[machine],
                entry=entry,
                driver_version="LATEST",
                compute_class="h200",
                node_service_account="nodes@project-a.iam.gserviceaccount.com",
                nics=NICS if MACHINES[machine].rdma_nics else [],
            ),
        )

    return deploy(program).only("gcp:container/nodePool:NodePool")


@pytest.mark.parametrize("mode", ["reservation", "flex-start", "spot"])
def test_a_pool_rests_at_no_nodes_and_keeps_what_gke_counts_and_labels(
    deploy: Deploy, mode: Literal["reservation", "flex-start", "spot"]
) -> None:
    pool = _pool(deploy, _entry(mode))
    assert pool.inputs["initialNodeCount"] == 0
    assert pool.inputs["autoscaling"] == {"totalMinNodeCount": 0, "totalMaxNodeCount": 4, "locationPolicy": "ANY"}
    assert pool.inputs["nodeLocations"] == ["us-central1-b"]
    if mode == "flex-start":
        # GKE has a strategy of its own there, which no input could ever equal.
        assert "upgradeSettings" not in pool.inputs and "upgradeSettings" in pool.ignore_changes
    else:
        # There is no spare capacity from which to add a node before one is taken away.
        assert pool.inputs["upgradeSettings"] == {"strategy": "SURGE", "maxSurge": 0, "maxUnavailable": 1}
    assert {"initialNodeCount", "nodeCount"} <= pool.ignore_changes
    # Only GKE's own keys are ignored: a changed class must still reach label and taint.
    assert pool.ignore_changes - {"initialNodeCount", "nodeCount", "upgradeSettings"} == {
        f'nodeConfig.labels["{k}"]' for k in GKE_LABELS
    }


def test_the_ten_interfaces_are_the_first_one_the_gvnic_and_the_rdma_nics_in_order(deploy: Deploy) -> None:
    networks = _pool(deploy, _entry("spot")).inputs["networkConfig"]
    assert networks["enablePrivateNodes"] is True
    assert [nic["subnetwork"] for nic in networks["additionalNodeNetworkConfigs"]] == [
        "gvnic",
        *(f"rdma-{index}" for index in range(8)),
    ]


def test_an_h200_node_has_the_disks_drivers_and_guards_that_its_machine_needs(deploy: Deploy) -> None:
    node = _pool(deploy, _entry("spot")).inputs["nodeConfig"]
    assert node["machineType"] == H200
    assert node["diskType"] == "hyperdisk-balanced"
    assert node["ephemeralStorageLocalSsdConfig"] == {"localSsdCount": 32}
    assert node["guestAccelerators"] == [
        {"type": "nvidia-h200-141gb", "count": 8, "gpuDriverInstallationConfig": {"gpuDriverVersion": "LATEST"}}
    ]
    assert node["gvnic"] == node["gcfsConfig"] == {"enabled": True}
    assert node["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
    assert node["shieldedInstanceConfig"] == {"enableSecureBoot": True, "enableIntegrityMonitoring": True}
    assert node["metadata"] == {"disable-legacy-endpoints": "true"}
    assert node["serviceAccount"] == "nodes@project-a.iam.gserviceaccount.com"
    assert node["resourceLabels"] == {"team": "vision"}


def test_the_compute_class_is_both_label_and_taint(deploy: Deploy) -> None:
    node = _pool(deploy, _entry("flex-start")).inputs["nodeConfig"]
    key = "cloud.google.com/compute-class"
    assert node["labels"] == {key: "h200"}
    assert node["taints"] == [{"key": key, "value": "h200", "effect": "NO_SCHEDULE"}]


def test_flex_start_ends_after_its_hours_is_not_repaired_and_takes_no_reservation(deploy: Deploy) -> None:
    pool = _pool(deploy, _entry("flex-start", max_run_duration_hours=24))
    node = pool.inputs["nodeConfig"]
    assert (node["flexStart"], node["maxRunDuration"], node["spot"]) == (True, "86400s", False)
    assert node["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert pool.inputs["management"] == {"autoRepair": False, "autoUpgrade": True}


def test_spot_and_reservation_nodes_have_no_end_and_are_repaired(deploy: Deploy) -> None:
    spot, reserved = _pool(deploy, _entry("spot")), _pool(deploy, _entry("reservation"))
    for pool in (spot, reserved):
        assert not {"flexStart", "maxRunDuration"} & set(pool.inputs["nodeConfig"])
        assert pool.inputs["management"] == {"autoRepair": True, "autoUpgrade": True}
    assert (spot.inputs["nodeConfig"]["spot"], reserved.inputs["nodeConfig"]["spot"]) == (True, False)
    assert reserved.inputs["nodeConfig"]["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["block-7"],
    }


def test_compact_placement_is_asked_for_only_where_the_entry_says_so(deploy: Deploy) -> None:
    assert _pool(deploy, _entry("spot", compact_placement=True)).inputs["placementPolicy"] == {"type": "COMPACT"}
    assert "placementPolicy" not in _pool(deploy, _entry("spot")).inputs


def test_an_l4_pool_on_demand_has_one_interface_and_its_own_kind_of_disk(deploy: Deploy) -> None:
    pool = _pool(deploy, _entry("on-demand"), machine="g2-standard-4")
    assert pool.inputs["networkConfig"] == {"enablePrivateNodes": True}
    assert pool.inputs["nodeConfig"]["diskType"] == "pd-balanced"
    assert pool.inputs["nodeConfig"]["guestAccelerators"][0]["type"] == "nvidia-l4"
    assert pool.inputs["nodeConfig"]["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
