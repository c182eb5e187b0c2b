"""What counts as a difference between a program, the state and a live object."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.gke.fit import fits, quantity, requests
from emulator.kubernetes import objects

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


@pytest.mark.parametrize(
    ("inputs", "before", "live", "read"),
    [
        ({"cpu": "1000m"}, {"cpu": "1"}, {"cpu": "1"}, {"cpu": "1000m"}),
        ({"cpu": "1000m"}, {"cpu": "1"}, {"cpu": "2"}, {"cpu": "2"}),
        ({"a": 1}, {"a": 1}, {"a": 1, "defaulted": True}, {"a": 1}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}, {"a": 1}),
        ({"stringData": {"k": "v"}}, {"data": {}}, {"data": {}}, {"stringData": {"k": "v"}}),
        (
            {"groups": [{"groupName": "w", "max": 4}]},
            {"groups": [{"groupName": "w", "max": 4, "replicas": 0}]},
            {"groups": [{"groupName": "other"}, {"groupName": "w", "max": 4, "replicas": 2}]},
            {"groups": [{"groupName": "w", "max": 4}]},
        ),
        ({"args": ["a"]}, {"args": ["a"]}, {"args": ["a", "b"]}, {"args": ["a", "b"]}),
    ],
    ids=["spelling", "changed", "added by others", "removed", "write-only", "list items by name", "lists of values"],
)
def test_a_refresh_reads_back_what_is_ours(inputs: Any, before: Any, live: Any, read: Any) -> None:
    assert objects.our_part(inputs, before, live) == read


def test_differences_are_named_by_path_and_only_immutable_fields_replace() -> None:
    old = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"a": 1}},
    }
    new = {**old, "spec": {"replicas": 2, "selector": {"a": 2}, "paused": True}}

    assert objects.changes(old, new) == {
        ".spec.paused": "add",
        ".spec.replicas": "update",
        ".spec.selector.a": "update",
    }
    assert objects.replacing(old, new, ()) == [".spec.selector.a"]


def test_a_config_map_is_replaced_unless_the_provider_was_told_otherwise() -> None:
    old = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "1"}}
    new = {**old, "data": {"k": "2"}}

    assert objects.replacing(old, new, ()) == [".data.k"]
    assert objects.replacing(old, {**old, "metadata": {"name": "c", "labels": {}}}, ()) == []
    assert objects.replacing(old, new, ("ConfigMap",)) == []


def test_a_generated_name_is_kept_and_a_given_one_wins() -> None:
    first = objects.named({"kind": "ConfigMap"}, {}, "settings")
    again = objects.named({"kind": "ConfigMap"}, first, "settings")
    given = objects.named({"kind": "ConfigMap", "metadata": {"name": "mine"}}, first, "settings")

    assert first["metadata"]["name"].startswith("settings-")
    assert again["metadata"] == first["metadata"]
    assert given["metadata"] == {"name": "mine"}


def test_a_pod_asks_for_its_largest_init_container_or_all_others_and_limits_count() -> None:
    assert requests(POD) == {"cpu": 2.0, "nvidia.com/gpu": 8.0, "pods": 1.0}
    assert [quantity(text) for text in ("100m", "1", "2Gi", "3k")] == [0.1, 1.0, 2.0**31, 3000.0]


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
