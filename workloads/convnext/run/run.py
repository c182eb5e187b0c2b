"""The description of one training run, for its driver, its preview and its tests."""

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
    """One run: its configuration, its folders, and its resources."""

    name: str
    """Same name, same run."""
    attempt: str
    """Name of this invocation alone, sortable by time, for everything that two invocations must not share."""
    config: TrainConfig
    """Configuration of the training."""
    folder: Folder
    """Checkpoints, history and results, in the runs bucket."""
    results: Path
    """Table, plot, JSON lines and the growing journal, on this machine."""
    workers: int
    """Ray Train workers, one per GPU or one per CPU; for an elastic run, the maximum."""
    least_workers: int
    """Minimum number of workers. If it is below `workers`, the run is elastic: it starts, and continues after a loss,
    with as many as there are."""
    gpus_per_node: int
    """GPUs of one node; 0 trains on CPUs with gloo."""
    gpu_max_nodes: int
    """Maximum number of GPU nodes that the stack can ever have."""
    timeout: float
    """Longest wait for capacity, seconds: before the first step, and each time workers are lost."""
    collective_timeout: float = COLLECTIVE_TIMEOUT_SECONDS
    """Seconds after which a rank that waits in a collective gives up on the others, and all start again."""
    gpu_queue_nodes: int = 0
    """GPU nodes that a job of the stack's queue may have."""
    node_hour_usd: float | None = None
    """Price per hour of one of its nodes; None if it is not known."""
    own_nodes: bool = False
    """Whether its nodes are provisioned for it alone, and removed with it."""
    max_usd: float | None = None
    """Cost limit for all its attempts together; None without a limit."""
    promise: ClusterEnvironment | None = None
    """The stack whose promise of RDMA is checked before training; None for no check."""

    @property
    def journal(self) -> Path:
        """This attempt's records, for anyone who follows it; the lasting history is in `folder`."""
        return self.results / "journal" / f"{self.attempt}.jsonl"

    @property
    def bundle(self) -> dict[str, float]:
        """Ray resources of each worker. One CPU on a GPU node as well: the loader's processes are not Ray's."""
        return {"GPU": 1, "CPU": 1} if self.gpus_per_node else {"CPU": 1}

    @property
    def strategy(self) -> Literal["PACK", "SPREAD"]:
        """Ray's placement strategy: GPUs of one node are closest to each other; CPU runs are to show several nodes."""
        return "PACK" if self.gpus_per_node else "SPREAD"

    def nodes(self, workers: int) -> int:
        """Nodes that `workers` workers need; on CPUs each may have a node of its own."""
        return math.ceil(workers / (self.gpus_per_node or 1))

    @property
    def team(self) -> str:
        """Its workers, in words."""
        most = counted(self.workers, f"{'GPU' if self.gpus_per_node else 'CPU'} worker")
        return most if self.least_workers == self.workers else f"{self.least_workers} to {most}"

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Resources of all workers, as requested from Ray."""
        return [self.bundle] * self.workers
