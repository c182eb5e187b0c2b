"""What figures were measured on, and how much memory a process has."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> dict[str, object]:
    """Description of the machine that the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": memory_kib("/proc/meminfo", "MemTotal") >> 20,
        "python": platform.python_version(),
    }


def memory_kib(file: str, name: str) -> int:
    """A row of such a file of /proc as counts in KiB; 0 where there is no such file or row."""
    try:
        rows = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith(f"{name}:")), 0)
