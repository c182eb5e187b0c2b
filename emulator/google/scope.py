"""Projects of the emulated Google, and the default location of resources that name none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The provider's configuration."""

    project: str = ""
    region: str = ""
    zone: str = ""


def project_number(project: str) -> str:
    """The number that stands for a project, always the same for the same id."""
    return str(10**11 + int(hashlib.sha256(project.encode()).hexdigest(), 16) % (9 * 10**11))
