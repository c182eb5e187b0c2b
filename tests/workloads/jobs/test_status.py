"""The status screen, node by node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.stub_kubectl import OUTPUTS
from workloads.cluster.stack import DeployedStack
from workloads.errors import AuthError
from workloads.jobs import paid_nodes
from workloads.jobs.command import node_rows
from workloads.jobs.entry_point import DRIVER_RESOURCES


def test_what_is_in_use_of_a_node_is_told_as_people_read_it() -> None:
    nodes = [
        {"ip": "10.0.0.2", "raylet": {"nodeId": "b", "state": "ALIVE"}},
        {"ip": "10.0.0.1", "raylet": {"nodeId": "a", "state": "ALIVE", "isHeadNode": True}},
    ]
    # As Ray 2.60 writes them.
    used = {
        "a": "0B/1.86GiB memory\n0B/190.73MiB object_store_memory\n0.02/1000.0 driver",
        "b": "1.0/8.0 CPU (1.0 used of 2.0 reserved in placement groups)\n0.5/2.0 GPU",
    }
    assert DRIVER_RESOURCES == {"driver": 0.01}
    assert node_rows({"summary": nodes, "nodeLogicalResources": used}) == [
        ("head", "10.0.0.1", "alive", "0B of 1.86GiB memory, drivers of 2 jobs"),
        ("worker", "10.0.0.2", "alive", "1 of 8 CPU (1.0 used of 2.0 reserved in placement groups), 0.5 of 2 GPU"),
    ]
    assert node_rows({"summary": nodes[:1]}) == [("worker", "10.0.0.2", "alive", "")]


def test_the_nodes_that_are_paid_for_are_told_with_their_price_and_holders_and_idle_ones_as_such() -> None:
    def node(name: str, *taints: str) -> dict[str, Any]:
        metadata = {"name": name, "creationTimestamp": "2026-11-28T10:00:00Z"}
        return {"metadata": metadata, "spec": {"taints": [{"key": taint} for taint in taints]}}

    def pod(name: str, on: str, gpus: int, phase: str = "Running", **labels: str) -> dict[str, Any]:
        limits = {"nvidia.com/gpu": gpus} if gpus else {}
        metadata = {"name": name, "namespace": "ray", "labels": {f"ray.io/{key}": of for key, of in labels.items()}}
        spec = {"nodeName": on, "containers": [{"resources": {"limits": limits}}]}
        return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}

    nodes = [node("b", "cloud.google.com/gke-queued"), node("a"), node("c")]
    held = [pod("w1", "a", 4, cluster="oasis"), pod("w2", "a", 4, cluster="oasis"), pod("mine", "b", 8)]
    pods = [*held, pod("daemon", "c", 0), pod("done", "c", 8, "Succeeded")]

    class Cluster(DeployedStack):
        def get(self, *words: str) -> dict[str, Any]:
            if not self.environment.project:
                raise AuthError("nodes is forbidden", "")
            return {"items": nodes if words[0] == "nodes" else pods}

    found = paid_nodes.look(Cluster(environment=OUTPUTS, token="", kubectl=("kubectl",)))

    assert paid_nodes.head_line(found) == "3 GPU nodes on, up to 145.20 USD an hour at list price; 1 idle"
    later = datetime(2026, 11, 28, 11, 30, tzinfo=UTC).timestamp()
    assert [(node.name, node.usd(later), node.holders) for node in found] == [
        ("a", pytest.approx(77.10), ("ray/oasis",)),
        ("b", pytest.approx(63.60), ("ray/mine",)),
        ("c", pytest.approx(77.10), ()),
    ]
    assert paid_nodes.head_line([replace(found[0], node_hour_usd=None)]) == "1 GPU node on"
    blind = replace(OUTPUTS, project="")
    with pytest.raises(AuthError, match="nodes is forbidden"):
        paid_nodes.look(Cluster(environment=blind, token="", kubectl=("kubectl",)))
