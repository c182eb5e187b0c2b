"""NCCL's logs of ranks on Ray, kept by one process per node that outlives the ranks there.

Such a process holds no CPU and no GPU, and imports neither torch nor NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workloads.errors import WorkloadFailedError, first_line
from workloads.nccl.definitions.stages import Round, Stage
from workloads.nccl.logs.debug_log import Keeper
from workloads.nccl.ranks.rank import Layout

START_SECONDS = 600.0
"""How long a process may take to start: on a new node it loads what it imports while the image still streams."""

_READ_SECONDS = 60.0
"""Longest wait for all keepers' logs; one on a node that is gone never answers."""


class KeptLogs:
    """The logs of all ranks of a placement group, for the duration of the context; on gloo there are none."""

    def __init__(self, group: PlacementGroup, hosts: Sequence[str], layout: Layout) -> None:
        """Start a keeper on each node whose ranks use NCCL.

        Args:
            group: a bundle per node.
            hosts: what to call each node.
            layout: where the ranks are.
        """
        remote: Any = ray.remote(Keeper)
        self._keepers: dict[int, ActorHandle] = {
            node: remote.options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, node)).remote()
            for node in range(layout.nodes if layout.gpus_per_node else 0)
        }
        self._hosts = hosts
        self._each = layout.ranks_per_node

    def __enter__(self) -> KeptLogs:
        return self

    def __exit__(self, *_: object) -> None:
        for keeper in self._keepers.values():
            ray.kill(keeper)

    def open(self, stage: Stage, subsystems: str) -> list[dict[str, str]]:
        """NCCL's settings with which each rank of a stage writes its log; none where none is kept.

        Args:
            stage: whose ranks.
            subsystems: what they are to write, as `Keeper.open` has it.

        Raises:
            WorkloadFailedError: a node starts no process; says which.
        """
        if not self._keepers:
            return [{}] * (len(stage.nodes) * self._each)
        deadline = time.monotonic() + START_SECONDS
        begun = {node: self._keepers[node].open.remote(self._each, subsystems) for node in stage.nodes}
        settings = []
        for node, asked in begun.items():
            try:
                settings += ray.get(asked, timeout=max(0.0, deadline - time.monotonic()))
            except RayError as error:
                raise WorkloadFailedError(
                    f"Node {node} ({self._hosts[node]}) started no process for {stage.name!r}: {death(error)}",
                    "Look at that node (`python -m workloads status`, the dashboard); run again.",
                ) from error
        return settings

    def read(self, stages: Round) -> dict[str, dict[int, str]]:
        """Each rank's log, by stage; those of a node that does not answer are missing."""
        nodes = [node for stage in stages for node in stage.nodes if node in self._keepers]
        asked = {node: self._keepers[node].read.remote() for node in nodes}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_READ_SECONDS)
        texts = {node: text for node in nodes if (text := _answer(asked[node])) is not None}
        return {
            stage.name: {
                place * self._each + local: text
                for place, node in enumerate(stage.nodes)
                for local, text in enumerate(texts.get(node, ()))
            }
            for stage in stages
        }


def _answer(asked: ray.ObjectRef[Any]) -> list[str] | None:
    try:
        return ray.get(asked, timeout=0)
    except RayError:  # the node died, or is too slow
        return None


def death(error: BaseException) -> str:
    """Ray's reason for the end of a process or its node, in one line: how it ended, not that it did."""
    lines = str(error).splitlines()
    told = (line.strip() for line in lines if "dead because" in line or "died because" in line)
    return next(told, "") or first_line(error)
