"""Measurements of one stage: the table's rows, their conditions, and NCCL's own logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Link, Stage
from workloads.reporting.progress import counted


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Conditions of a measurement, without which its numbers mean nothing."""

    op: str
    backend: str
    """`nccl` or `gloo`; figures of different backends are never compared."""
    nodes: int
    ranks: int
    hosts: tuple[str, ...]
    """Host of each rank."""
    node_of_rank: tuple[int, ...]
    """Node of each rank, by its number in the placement group."""
    devices: tuple[str, ...]
    """Device of each rank: `cuda:3`, or `cpu`."""
    gpus_per_node: int
    """GPUs taken from each node; 0 on CPUs."""
    rdma_nics: int
    """NICs for RDMA that the stack gives a node; 0 where it promises none."""
    promised_rdma: bool
    """Whether the stack promised RDMA, so that a path without it is an error."""
    average: bool
    """Whether a time is the mean over the ranks (nccl-tests -a 1) rather than the slowest rank's (-a 3)."""
    started: str
    """When, RFC 3339."""
    machine_type: str
    """Compute Engine machine type; empty where it is unknown or has no part in the measurement."""
    accelerator: str
    """GPU as torch names it; empty on CPU."""
    image: str
    """Container image, with its digest where the stack pins one; empty outside a stack."""
    versions: Mapping[str, str]
    """torch, CUDA, NCCL, Ray, Python."""
    variables: Mapping[str, str]
    """NCCL_, GLOO_ and OMP_ variables of rank 0."""
    own_calls: bool = False
    """Whether all_reduce and broadcast out of place are NCCL's own calls, not torch's in place after a copy."""

    def lines(self) -> list[str]:
        """The table's head for people."""
        rank = "mean over the ranks (nccl-tests -a 1)" if self.average else "slowest rank (nccl-tests -a 3)"
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return [
            f"# {self.op}: {self.where()}",
            f"# {versions}",
            f"# time: mean of calls back to back, {rank}; GB is 10^9 bytes",
            f"# all_reduce and broadcast out of place: {self.out_of_place()}, as torch has them in place only",
        ]

    def out_of_place(self) -> str:
        """How all_reduce and broadcast are called out of place."""
        return "NCCL's own calls" if self.own_calls else "after a copy that is not timed"

    def where(self) -> str:
        """Nodes, ranks and what they ran on, in a few words."""
        machine = f", {self.accelerator}" + (f" ({self.machine_type})" if self.machine_type else "")
        return (
            f"{counted(self.nodes, 'node')}, {counted(self.ranks, 'rank')}, {self.backend}"
            f"{machine if self.accelerator else ' on CPU'}"
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One stage as measured."""

    stage: Stage
    conditions: Conditions
    rows: tuple[Row, ...]
    links: tuple[Link, ...]
    """Exchanges between pairs of ranks; empty where they were not asked for."""
    logs: Mapping[int, str]
    """NCCL's own log of each rank: of the one that was timed, then of the untimed one; empty on gloo."""


def widest(measured: Sequence[Measured]) -> Measured:
    """The stage that speaks for a run: NCCL's own choice on the most nodes."""
    return max(measured, key=lambda one: (one.conditions.nodes, not one.stage.algorithm))
