"""The log that NCCL writes where it is asked to: what it is asked for, and the memory that keeps it.

What a rank wrote before it died is what tells why it died, so it must not die with it; and no file is left behind by
whatever is killed.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

VARIABLE = "NCCL_DEBUG_FILE"

LOGGING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV,TUNING"}
"""What NCCL is asked to say: which plugin, devices, paths, algorithms and protocols it takes, and its settings."""


class Keeper:
    """The logs of one node's ranks."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def open(self, ranks: int) -> list[str]:
        """Begin a log for each of so many ranks, and forget those before; where a process of this node writes it."""
        for file in self._files:
            os.close(file)
        self._files = [os.memfd_create("nccl-log") for _ in range(ranks)]
        return [f"/proc/{os.getpid()}/fd/{file}" for file in self._files]

    def read(self) -> list[str]:
        """What was written so far; a line that is repeated, as one of each call is, stands once."""
        texts = [Path(f"/proc/self/fd/{file}").read_text(errors="replace") for file in self._files]
        return ["".join(line for line, _ in itertools.groupby(text.splitlines(keepends=True))) for text in texts]
