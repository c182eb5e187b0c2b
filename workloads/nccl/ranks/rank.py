"""A rank of the benchmark, and where the ranks are. Needs torch alone, so that it runs where there is nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workloads.nccl.definitions.collectives import Seat
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.ranks.measure import Participant, RankPlan, Sample

Facts = dict[str, Any]
"""What a rank says of itself: `host.describe`, and what `Rank.join` adds."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of ranks on nodes."""

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
        """Resources of one node."""
        cpus = {"CPU": float(self.ranks_per_node)}
        return {**cpus, "GPU": float(self.gpus_per_node)} if self.gpus_per_node else cpus

    @property
    def backend(self) -> str:
        """`nccl` on GPUs, `gloo` on CPUs."""
        return "nccl" if self.gpus_per_node else "gloo"

    def nodes_of_ranks(self, stage: Stage) -> tuple[int, ...]:
        """Node of each rank of a stage, by its number in the placement group: node by node."""
        return tuple(node for node in stage.nodes for _ in range(self.ranks_per_node))

    def seats(self, stage: Stage) -> list[Seat]:
        """The ranks of a stage: node by node."""
        ranks = len(stage.nodes) * self.ranks_per_node
        stride = self.ranks_per_node if len(stage.nodes) > 1 else 1
        return [Seat(rank=rank, ranks=ranks, stride=stride) for rank in range(ranks)]


class Rank:
    """One rank, in the process that this is. Who starts it says how it learns of its place: `placement`, or another."""

    def __init__(self, seat: Seat, layout: Layout, plan: RankPlan, log: Mapping[str, str]) -> None:
        """Take this seat.

        Args:
            seat: of this rank.
            layout: where the ranks are.
            plan: what they do.
            log: NCCL's settings with which it writes its log; none on gloo.
        """
        self._seat = seat
        self._layout = layout
        self._plan = plan
        self._device = torch.device("cpu")
        os.environ.update(log)  # before NCCL's first use, as it reads these once
        self._listener: socket.socket | None = None
        self._participant: Participant | None = None

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

    def call(self, size: int) -> None:
        """Make one call of this size, untimed."""
        self._joined().call(size)

    def links(self, rounds: list[list[tuple[int, int]]]) -> list[tuple[tuple[int, int], float]]:
        """Time an exchange with each partner."""
        return self._joined().links(rounds)

    def leave(self) -> None:
        """Leave the process group."""
        self._joined().leave()

    def _joined(self) -> Participant:
        assert self._participant is not None
        return self._participant
