"""Command lines of running processes."""

from __future__ import annotations

from pathlib import Path


def command_line(pid: int) -> str:
    """A process's words with a space between; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def command_lines() -> dict[int, str]:
    """The command line of every process of this machine, those of other test runs among them."""
    return {int(entry.name): command_line(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
