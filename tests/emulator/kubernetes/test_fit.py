"""Which pods fit on which nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulator.gke.fit import fits, free, quantity, requests, selects

POD: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {
        "initContainers": [
            {"resources": {"requests": {"cpu": "2"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
        ],
        "containers": [{"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "nvidia.com/gpu": "8"}}}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "gpu"},
    },
}


def test_a_pod_asks_for_its_largest_init_container_or_all_others_and_limits_count() -> None:
    assert requests(POD) == {"cpu": 2.0, "nvidia.com/gpu": 8.0, "pods": 1.0}
    assert [quantity(text) for text in ("100m", "1", "2Gi", "3k")] == [0.1, 1.0, 2.0**31, 3000.0]


def test_a_pod_requests_each_further_network_that_it_names_and_fits_nowhere_if_they_cannot_be_read() -> None:
    interfaces = [{"interfaceName": f"eth{i}", "network": name} for i, name in enumerate(("default", "rdma-0"))]

    def asked(text: str) -> set[str]:
        return {*requests({"metadata": {"annotations": {"networking.gke.io/interfaces": text}}, "spec": {}})}

    network = "networking.gke.io.networks/rdma-0"
    assert asked(json.dumps(interfaces)) == {network, f"{network}.IP", "pods"}
    for unreadable in ("eth1: rdma-0", '{"eth1": "rdma-0"}', '[{"interfaceName": "eth1"}]'):
        assert len(asked(unreadable)) == 3


def test_a_pod_whose_fuse_sidecar_cannot_be_sized_fits_nowhere() -> None:
    annotations = {"gke-gcsfuse/volumes": "true", "gke-gcsfuse/memory-request": "256Mi"}

    def asked(**change: str) -> dict[str, float]:
        return requests({"metadata": {"annotations": {**annotations, **change}}, "spec": {}})

    assert asked() == {"memory": 2.0**28, "pods": 1.0}
    for amount in ("lots", "nan", "-1Gi"):
        assert asked(**{"gke-gcsfuse/cpu-request": amount}) == {"gke-gcsfuse": 1.0, "pods": 1.0}


@pytest.mark.parametrize(
    ("operator", "values", "where"),
    [
        ("In", ["9"], {"9"}),
        ("NotIn", ["9"], {None, "10", "h200"}),
        ("Exists", None, {"9", "10", "h200"}),
        ("DoesNotExist", None, {None}),
        ("Gt", ["9"], {"10"}),
        ("Lt", ["10"], {"9"}),
    ],
)
def test_each_operator_of_node_affinity_matches_as_in_kubernetes(
    operator: str, values: list[str] | None, where: set[str | None]
) -> None:
    """apimachinery, pkg/labels/selector.go, Requirement.Matches: Gt and Lt compare numbers."""
    terms = [{"matchExpressions": [{"key": "generation", "operator": operator, "values": values}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = {"spec": {"affinity": {"nodeAffinity": required}}}

    labels: list[str | None] = [None, "9", "10", "h200"]
    assert {it for it in labels if selects(pod, {"generation": it} if it else {})} == where


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_no_pod_has_all_of_a_node_to_itself(resource: str) -> None:
    allocatable = {"cpu": "7910m", "memory": "28Gi", "nvidia.com/gpu": "8", "pods": "110"}

    assert free({"status": {"allocatable": allocatable}}, [])[resource] < 0.99 * quantity(allocatable[resource])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"labels": {"pool": "cpu"}}, False),
        ({"taints": [{"key": "other", "value": "x", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "other", "value": "x", "effect": "PreferNoSchedule"}]}, True),
        ({"left": {"cpu": 2.0, "pods": 1.0, "nvidia.com/gpu": 7.0}}, False),
    ],
)
def test_a_pod_fits_where_labels_taints_and_room_allow(change: dict[str, Any], expected: bool) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    node = {
        "metadata": {"labels": change.get("labels", {"pool": "gpu"})},
        "spec": {"taints": [taint, *change.get("taints", [])]},
    }
    left = change.get("left", {"cpu": 2.0, "pods": 1.0, "nvidia.com/gpu": 8.0})

    assert fits(POD, node, left) is expected
