"""The log that NCCL writes where it is asked to: what it is asked for, and the memory that keeps it.

What a rank wrote before it died is what tells why it died, so it must not die with it; and no file is left behind by
whatever is killed.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "NCCL_DEBUG_FILE"

PATH = "INIT,NET,GRAPH,ENV"
"""What NCCL is asked to say where it is timed: which plugin, devices and paths it takes, and its settings."""

CHOICES = "TUNING"
"""What it is asked to say in a run of its own: algorithm and protocol, in a line that each call would be timed with."""


class Keeper:
    """The logs of one node's ranks."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def open(self, ranks: int, subsystems: str) -> list[dict[str, str]]:
        """Begin a log for each of so many ranks, and forget those before.

        Args:
            ranks: of this node.
            subsystems: what each log is to say, `PATH` or `CHOICES`.

        Returns:
            NCCL's settings for each rank, a process of this node.
        """
        for file in self._files:
            os.close(file)
        self._files = [os.memfd_create("nccl-log") for _ in range(ranks)]
        asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems}
        return [asked | {VARIABLE: f"/proc/{os.getpid()}/fd/{file}"} for file in self._files]

    def read(self) -> list[str]:
        """Everything written so far."""
        return [Path(f"/proc/self/fd/{file}").read_text(errors="replace") for file in self._files]
