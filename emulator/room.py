"""Disk and memory: what is free is looked at before something is begun that would not come to its end without it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from emulator.state import EmulatorError


def require(folder: Path, what: str, *, disk_gb: int, memory_gb: int, elsewhere: str) -> None:
    """Refuse what the machine has no room for.

    Args:
        folder: where the disk space is needed; it exists.
        what: what is about to begin, as in `running the emulator`.
        disk_gb: free disk that it needs, in GiB.
        memory_gb: memory that must be available, in GiB.
        elsewhere: how the user can have the files on another disk.

    Raises:
        EmulatorError: says what was found, what is needed and what to do.
    """
    disk, memory = shutil.disk_usage(folder).free, free_memory()
    if disk < disk_gb << 30:
        raise EmulatorError(
            f"{disk / 2**30:.1f} GB are free where {folder} is, and {what} takes up to {disk_gb} GB. "
            f"Free some, or {elsewhere}."
        )
    if memory < memory_gb << 30:
        raise EmulatorError(
            f"{memory / 2**30:.1f} GB of memory are available, and {what} takes up to {memory_gb} GB. "
            "End other programs, or use a larger machine."
        )


def free_memory() -> int:
    """Bytes that can still be used, the control group's limit (containers) included."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    available = int(found.group(1)) << 10 if found else 0
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    except OSError:  # no control group of version 2, or its root
        return available
    # Files that were read or written count as used and are given up as soon as a program asks for memory.
    return available if limit == "max" else min(available, int(limit) - used + (int(cached.group(1)) if cached else 0))
