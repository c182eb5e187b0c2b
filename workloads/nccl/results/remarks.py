"""What is said about measured stages, beside their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.nccl.results.suspects import Suspect

Records = Mapping[str, dict[str, Any]]
"""Plain data by the name of the stage that they belong to."""


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """Verdicts, judgements and suspects of one run."""

    verdicts: Records = field(default_factory=dict)
    """Of NCCL's logs, which path was taken; a stage may be missing."""
    judgements: Records = field(default_factory=dict)
    """Of the figures against the machine type's thresholds; a stage may be missing."""
    suspects: tuple[Suspect, ...] = ()
    """Who is slow."""
    stopped: str = ""
    """Why stages are missing; empty where none is."""


NO_REMARKS = Remarks()
