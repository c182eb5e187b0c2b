"""One training run, as its driver, its preview and its tests know it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workloads.convnext.config import TrainConfig
from workloads.environment import ClusterEnvironment
from workloads.reporting.progress import counted
from workloads.storage.folders import Folder

COLLECTIVE_TIMEOUT_SECONDS = 600.0
"""By default torch waits 30 minutes in a collective, and Ray for ever."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: what it computes, where it keeps its things, and what it computes with."""

    name: str
    """Same name, same run."""
    attempt: str
    """This invocation's own name, sorted by time, for what two invocations must not share."""
    config: TrainConfig
    """What it computes."""
    folder: Folder
    """Checkpoints, history and results, in the runs bucket."""
    results: Path
    """Table, plot, JSON lines and the growing journal, on this machine."""
    workers: int
    """Ray Train workers, one per GPU or one per CPU; of an elastic run, the most."""
    least_workers: int
    """Below `workers`, the run is elastic: it starts, and goes on after a loss, with what there is, from here up."""
    gpus_per_node: int
    """GPUs of one node; 0 trains on CPUs with gloo."""
    gpu_max_nodes: int
    """Most GPU nodes the stack can ever have."""
    timeout: float
    """Longest wait for capacity, seconds: before the first step, and each time that workers are lost."""
    collective_timeout: float = COLLECTIVE_TIMEOUT_SECONDS
    """Seconds after which a rank that waits in a collective gives the others up, and all start again."""
    gpu_queue_nodes: int = 0
    """GPU nodes that a job of the stack's queue may have."""
    node_hour_usd: float | None = None
    """Price of an hour of one of its nodes; None where it is not known."""
    own_nodes: bool = False
    """Whether its nodes come for it alone, and go with it."""
    max_usd: float | None = None
    """What all its attempts together may cost; None without a limit."""
    promise: ClusterEnvironment | None = None
    """The stack whose promise of RDMA is checked before training; None is no check."""

    @property
    def journal(self) -> Path:
        """This attempt's records, for those that follow it; the history that lasts is in `folder`."""
        return self.results / "journal" / f"{self.attempt}.jsonl"

    @property
    def bundle(self) -> dict[str, float]:
        """Ray resources of each worker. One CPU on a GPU node too: the loader's processes are not Ray's."""
        return {"GPU": 1, "CPU": 1} if self.gpus_per_node else {"CPU": 1}

    @property
    def strategy(self) -> Literal["PACK", "SPREAD"]:
        """Ray's name for where workers go: GPUs of one node are nearest to each other, CPUs are for showing nodes."""
        return "PACK" if self.gpus_per_node else "SPREAD"

    def nodes(self, workers: int) -> int:
        """Nodes that so many workers need; on CPUs each may have one of its own."""
        return math.ceil(workers / (self.gpus_per_node or 1))

    @property
    def team(self) -> str:
        """Its workers, in words."""
        most = counted(self.workers, f"{'GPU' if self.gpus_per_node else 'CPU'} worker")
        return most if self.least_workers == self.workers else f"{self.least_workers} to {most}"

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Resources of all workers, as asked of Ray."""
        return [self.bundle] * self.workers
