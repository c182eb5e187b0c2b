"""Measurements that end in the ways in which a real one can; each runs in a process of its own, which imports this."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any


def ending(how: str) -> dict[str, Any]:
    """One that ends as it is told to."""
    match how:
        case "error":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand much more")
        case "exit":
            os._exit(3)
        case "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        case "never":
            time.sleep(3600)
    return {"how": how}


def interrupting(pids: Path, number: int = signal.SIGINT) -> dict[str, Any]:
    """One that starts a program, writes both process ids, and has Ctrl-C pressed, or another signal sent, meanwhile."""
    program = subprocess.Popen(["sleep", "120"])
    pids.write_text(f"{os.getpid()} {program.pid}")
    os.kill(os.getppid(), number)
    time.sleep(30)
    return {}
