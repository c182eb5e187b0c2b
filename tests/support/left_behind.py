"""Ends the processes that an interrupted test run leaves: its servers are no children of it, and outlive it.

pytest-xdist gives a process 15 seconds after Ctrl-C (execnet, gateway_base.py), and its fixtures need longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from emulator.machine import processes
from emulator.machine.state import CHECKOUT

VARIABLE = "TESTS_FOLDER"
"""In the environment of a test process, and of what it starts: its temporary folder."""


def end_after_this_process(folder: Path) -> None:
    """Have everything that runs for this temporary folder ended once this process has, however it ends."""
    os.environ[VARIABLE] = str(folder)
    reader, writer = os.pipe()  # nobody writes: the kernel closes the other end with this process
    os.set_inheritable(writer, False)
    with os.fdopen(reader, "rb") as end:
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            stdin=end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=CHECKOUT,
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
            start_new_session=True,
        )


def running_for(folder: Path) -> list[int]:
    """Processes with this temporary folder in their environment, as a test process's or as an emulator's."""
    found = []
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}  # none of one that has ended meanwhile
        owner = environment.get(processes.OWNER_VARIABLE, "")
        if environment.get(VARIABLE) == str(folder) or owner.startswith(f"{folder}/"):
            found.append(process.pid)
    return found


def main(folder: Path) -> None:
    """Wait for the end of standard input, and end what runs for the folder then."""
    sys.stdin.read()
    for _ in range(2):  # what the first of them start while they end
        processes.end(running_for(folder), grace_seconds=5.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
