"""What one stage of the ladder has measured: the table's rows, what they were measured under, NCCL's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Link, Stage

if TYPE_CHECKING:
    from workloads.nccl.results.report import Conditions


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
