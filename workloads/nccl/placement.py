"""Where ranks live: a process (a Ray actor) per rank, on the node of its bundle, seeing all GPUs of that node.

Ray would give each actor one visible GPU; NCCL then cannot see its neighbours' and is slower by orders of magnitude
(ray-project/ray issue 61073). The masking is off and rank r takes device r, as under torchrun.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workloads import process_group
from workloads.nccl import host, kept_logs
from workloads.nccl.collectives import Seat
from workloads.nccl.measure import Participant, Plan, Sample
from workloads.nccl.stages import Stage

UNMASKED = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Environment of a rank that sees every GPU of its node."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the ranks are."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    """GPUs taken from each node; 0 runs gloo on CPUs."""

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def bundle(self) -> dict[str, float]:
        """What one node must have."""
        cpus = {"CPU": float(self.ranks_per_node)}
        return {**cpus, "GPU": float(self.gpus_per_node)} if self.gpus_per_node else cpus

    @property
    def backend(self) -> str:
        """`nccl` on GPUs, `gloo` on CPUs."""
        return "nccl" if self.gpus_per_node else "gloo"

    def seats(self, stage: Stage) -> list[Seat]:
        """The ranks of a stage: node by node."""
        ranks = len(stage.nodes) * self.ranks_per_node
        stride = self.ranks_per_node if len(stage.nodes) > 1 else 1
        return [Seat(rank=rank, ranks=ranks, stride=stride) for rank in range(ranks)]


class RankActor:
    """One rank; a process of its own on the node of its bundle."""

    def __init__(self, seat: Seat, layout: Layout, plan: Plan, log: str) -> None:
        self._seat = seat
        self._layout = layout
        self._plan = plan
        self._device = torch.device("cpu")
        if log:  # before NCCL's first use, as it reads these once
            os.environ.update(kept_logs.LOGGING | {kept_logs.VARIABLE: log})
        self._listener: socket.socket | None = None
        self._participant: Participant | None = None

    def arrive(self) -> dict[str, Any]:
        """What this rank finds on its node, before any rank waits for another."""
        if not self._layout.gpus_per_node:
            return host.describe("gloo")
        host.check_gpus(self._layout.gpus_per_node)
        return {**host.describe("nccl"), "gpu": host.assigned_gpu()}

    def open(self) -> tuple[str, int]:
        """On rank 0: open the meeting point; returns its address and port."""
        address = ray.util.get_node_ip_address()
        self._listener = process_group.listen(address)
        return address, self._listener.getsockname()[1]

    def join(self, address: str, port: int, gpu: int) -> dict[str, Any]:
        """Enter the process group on this GPU; returns what is known once a rank is in it."""
        if self._layout.gpus_per_node:
            self._device = torch.device("cuda", gpu)
        self._participant = Participant(self._seat, self._device, self._plan)
        self._participant.join(address, port, self._listener)
        return {
            "device": str(self._device),
            "accelerator": torch.cuda.get_device_name(self._device) if self._layout.gpus_per_node else "",
            "room": self._participant.room(self._layout.ranks_per_node),
        }

    def measure(self, size: int, in_place: bool) -> Sample:
        """Time one size."""
        return self._joined().measure(size, in_place)

    def links(self, rounds: list[list[tuple[int, int]]]) -> list[tuple[tuple[int, int], float]]:
        """Time an exchange with each partner."""
        return self._joined().links(rounds)

    def leave(self) -> None:
        """Leave the process group."""
        self._joined().leave()

    def _joined(self) -> Participant:
        assert self._participant is not None
        return self._participant


def options(group: PlacementGroup, node: int, layout: Layout, algorithm: str) -> dict[str, Any]:
    """How Ray is to start a rank.

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
