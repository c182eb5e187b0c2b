"""Where ranks live: a process (a Ray actor) per rank, on the node of its bundle, seeing all GPUs of that node.

Ray would give each actor one visible GPU; NCCL then cannot see its neighbours' and is slower by orders of magnitude
(ray-project/ray issue 61073). The masking is off and rank r takes device r, as under torchrun.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workloads.cluster import process_group
from workloads.nccl.ranks import node_facts
from workloads.nccl.ranks.rank import Layout, Rank

UNMASKED = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Environment of a rank that sees every GPU of its node."""


class RankActor(Rank):
    """One rank; a process of its own on the node of its bundle."""

    def arrive(self) -> dict[str, Any]:
        """Facts that this rank finds on its node, before any rank waits for another."""
        if not self._layout.gpus_per_node:
            return node_facts.describe("gloo")
        node_facts.check_gpus(self._layout.gpus_per_node)
        return {**node_facts.describe("nccl"), "gpu": node_facts.assigned_gpu()}

    def open(self) -> tuple[str, int]:
        """On rank 0: open the meeting point; returns its address and port."""
        address = ray.util.get_node_ip_address()
        self._listener = process_group.listen(address)
        return address, self._listener.getsockname()[1]


def options(group: PlacementGroup, node: int, layout: Layout, algorithm: str) -> dict[str, Any]:
    """Ray's options for starting a rank.

    Args:
        group: one bundle per node.
        node: its bundle.
        layout: where the ranks are.
        algorithm: what NCCL_ALGO forces; NCCL reads it when a process first uses it, so it is set for the process.
    """
    forced = {"NCCL_ALGO": algorithm} if algorithm else {}
    return {
        "num_cpus": 1,
        "num_gpus": 1 if layout.gpus_per_node else 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, node),
        "runtime_env": {"env_vars": UNMASKED | forced},
        "max_restarts": 0,
    }


def hosts(group: PlacementGroup, nodes: int) -> list[str]:
    """Host name and Ray's id of each bundle's node."""
    where: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    return [f"{names.get(where[node], 'unknown host')}/{where[node][:8]}" for node in range(nodes)]
