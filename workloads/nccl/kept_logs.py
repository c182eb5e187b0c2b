"""NCCL's own logs, written into the memory of one process per node that outlives the ranks there.

What a rank wrote before it died is what tells why it died, so it must not die with it; and no file is left behind by
whatever is killed. A process that keeps logs holds no CPU and no GPU, and imports neither torch nor NCCL.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workloads.nccl.stages import Stage

VARIABLE = "NCCL_DEBUG_FILE"

LOGGING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV,TUNING"}
"""What NCCL is asked to say: which plugin, devices, paths, algorithms and protocols it takes, and its settings."""

_ANSWER_SECONDS = 30.0
"""Longest wait for a keeper to answer; one on a node that is gone never does."""


class Keeper:
    """The logs of one node's ranks."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def open(self, ranks: int) -> list[str]:
        """Begin a log for each of so many ranks, and forget those before; where a process of this node writes it."""
        for file in self._files:
            os.close(file)
        self._files = [os.memfd_create("nccl-log") for _ in range(ranks)]
        return [f"/proc/{os.getpid()}/fd/{file}" for file in self._files]

    def read(self) -> list[str]:
        """What was written so far; a line that is repeated, as one of each call is, stands once."""
        texts = [Path(f"/proc/self/fd/{file}").read_text(errors="replace") for file in self._files]
        return ["".join(line for line, _ in itertools.groupby(text.splitlines(keepends=True))) for text in texts]


class KeptLogs:
    """The logs of all ranks of a placement group; without keepers, as on gloo, there are none."""

    def __init__(self, keepers: dict[int, ActorHandle], ranks_per_node: int) -> None:
        """Use these keepers.

        Args:
            keepers: by node, the bundle's number.
            ranks_per_node: as `Layout` has it.
        """
        self._keepers = keepers
        self._each = ranks_per_node

    def open(self, stage: Stage) -> list[str]:
        """Where each rank of a stage is to write; empty where none is kept.

        Raises:
            RayError: a node is gone.
        """
        if not self._keepers:
            return [""] * (len(stage.nodes) * self._each)
        begun = [self._keepers[node].open.remote(self._each) for node in stage.nodes]
        return [path for paths in ray.get(begun) for path in paths]

    def read(self, stage: Stage) -> dict[int, str]:
        """What each rank of a stage wrote; those of a node that is gone are missing."""
        asked = {node: self._keepers[node].read.remote() for node in stage.nodes if node in self._keepers}
        answered, _ = (
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS) if asked else ([], [])
        )
        found: dict[int, str] = {}
        for place, node in enumerate(stage.nodes):
            if asked.get(node) in answered:
                try:
                    texts = ray.get(asked[node])
                except RayError:  # its node died
                    continue
                found |= {place * self._each + local: text for local, text in enumerate(texts)}
        return found


@contextmanager
def kept(group: PlacementGroup, nodes: int, ranks_per_node: int, wanted: bool) -> Iterator[KeptLogs]:
    """Logs of ranks on these nodes, for the length of the block.

    Args:
        group: a bundle per node.
        nodes: how many.
        ranks_per_node: as `Layout` has it.
        wanted: false where NCCL has no part.
    """
    remote: Any = ray.remote(Keeper)
    keepers = {
        node: remote.options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, node)).remote()
        for node in range(nodes if wanted else 0)
    }
    try:
        yield KeptLogs(keepers, ranks_per_node)
    finally:
        for keeper in keepers.values():
            ray.kill(keeper)
