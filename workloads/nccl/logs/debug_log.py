"""NCCL's debug log: the subsystems that are requested, and the memory that keeps the log.

What a rank wrote before it died tells why it died, so the log must outlive the rank; and a killed process must leave no
file behind.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "NCCL_DEBUG_FILE"

PATH = "INIT,NET,GRAPH,ENV"
"""Subsystems to log in timed runs: the plugin, devices and paths that NCCL uses, and its settings."""

CHOICES = "TUNING"
"""Subsystem to log in a separate run: algorithm and protocol, one line per call, which would count in its time."""


class Keeper:
    """The logs of one node's ranks."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def open(self, ranks: int, subsystems: str) -> list[dict[str, str]]:
        """Begin a log for each of `ranks` ranks, and forget the previous logs.

        Args:
            ranks: number of ranks on this node.
            subsystems: what each log is to record, `PATH` or `CHOICES`.

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
