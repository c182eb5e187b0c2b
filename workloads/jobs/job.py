"""A job for Ray, whether submitted through the Jobs API or by KubeRay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workloads.jobs.entry_point import Demand


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job for Ray."""

    name: str
    """Its submission id, and the name of its RayJob if it has one."""
    entrypoint: str
    runtime_env: dict[str, Any]
    demand: Demand

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that Ray keeps with the job."""
        return {"oasis.command": self.name.rsplit("-", 3)[0]}
