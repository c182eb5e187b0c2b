"""Ways in which a check ends. Standard library only: the doctor must run where nothing of ours is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from workloads.environment import ClusterEnvironment
from workloads.errors import WorkloadError

Outcome = Literal["ok", "warn", "fail", "not here"]

OUTSIDE = "not asked from outside a stack's cluster; `python -m workloads submit -- doctor` asks within"


class Doubtful(WorkloadError):
    """The workloads run all the same, but slower or with less. What they cannot do without is an error of its kind."""


class NotHere(Exception):
    """A check does not apply to this place; says why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    check: str
    outcome: Outcome
    found: str
    remedy: str = ""
    authentication: bool = False
    """Whether a failure is a refused token, key or permission."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The surroundings that the checks look at."""

    environment: ClusterEnvironment | None
    """What the stack promises; None outside a stack's cluster."""
    variables: Mapping[str, str]
    """Environment variables."""
    gpus: int
    """GPUs that the driver of this machine lists."""

    @property
    def in_cluster(self) -> bool:
        """True if a Ray cluster is around, and not one that a command would start for itself."""
        return self.environment is not None or "RAY_ADDRESS" in self.variables
