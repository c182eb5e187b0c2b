"""Disk and memory: checks that enough is free before starting something that would otherwise fail midway.

`python -m emulator.programs.free_space packages [programs]` checks with a bare Python, before there is an environment.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from emulator.machine.state import EmulatorError
from emulator.programs.go_modules import cache_directory

PACKAGES_GB = 9
"""The unpacked Python packages, torch with CUDA among them, take 6 GB; pip keeps each wheel beside that."""

PROGRAMS_GB = 12
"""What a build from scratch may take: 2.5 GB of modules, about 3 GB of build cache, link steps, and room to spare."""

COMPILER_MEMORY_GB = 6
"""Two compiler processes of up to 1.9 GB each, and whatever else runs."""

ANOTHER_CACHE = "set XDG_CACHE_HOME to a folder on a larger disk"


def main(wanted: Sequence[str]) -> str | None:
    """Check that there is room for the installation; returns the status for `sys.exit`, a text if there is no room.

    Args:
        wanted: `packages`, and `programs` if the emulator's will be built next, should there be none yet.
    """
    here, cache = Path.cwd(), cache_directory()
    build = "programs" in wanted and not any((cache / "bin").glob("*"))
    other = next(folder for folder in (cache, *cache.parents) if folder.exists())
    together = build and other.stat().st_dev == here.stat().st_dev
    packages, programs = "installing the Python packages", "building the emulator's programs"
    try:
        require(
            here,
            f"{packages} and {programs}" if together else packages,
            disk_gb=PACKAGES_GB + (PROGRAMS_GB if together else 0),
            memory_gb=COMPILER_MEMORY_GB if together else 0,
            elsewhere="clone to another disk",
        )
        if build and not together:
            require(other, programs, disk_gb=PROGRAMS_GB, memory_gb=COMPILER_MEMORY_GB, elsewhere=ANOTHER_CACHE)
    except EmulatorError as error:
        return str(error)
    return None


def require(folder: Path, what: str, *, disk_gb: int, memory_gb: int, elsewhere: str) -> None:
    """Refuse an action that the machine has no room for.

    Args:
        folder: where the disk space is needed; it exists.
        what: what is about to begin, as in `running the emulator`.
        disk_gb: free disk that it needs, in GiB.
        memory_gb: memory that must be available, in GiB; 0 skips the check, as free memory is known only on Linux.
        elsewhere: how the user can put the files on another disk.

    Raises:
        EmulatorError: too little is free; says what was found, what is needed and what to do.
    """
    disk = shutil.disk_usage(folder).free
    if disk < disk_gb << 30:
        raise EmulatorError(
            f"{disk / 2**30:.1f} GB are free where {folder} is, and {what} takes up to {disk_gb} GB. "
            f"Free some, or {elsewhere}."
        )
    if memory_gb and (memory := free_memory()) < memory_gb << 30:
        raise EmulatorError(
            f"{memory / 2**30:.1f} GB of memory are available, and {what} takes up to {memory_gb} GB. "
            "End other programs, or use a larger machine."
        )


def free_memory() -> int:
    """Bytes that can still be used, within the control group's limit (containers)."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    available = int(found.group(1)) << 10 if found else 0
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), int((group / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    except OSError:  # no control group v2, or its root
        return available
    # Cached files count as used, but are dropped as soon as a program asks for memory.
    return available if limit == "max" else min(available, int(limit) - used + (int(cached.group(1)) if cached else 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
