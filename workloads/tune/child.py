"""Starts a trial's `train` so that it ends with the process that wanted it: the first thing a trial's process runs.

Ray blocks SIGINT in the processes it starts, and a blocked signal is inherited; unblocked, it ends a trial cleanly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from workloads import __main__ as command_line
from workloads.errors import EXIT_INTERRUPTED

_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def main(parent: int, arguments: list[str]) -> int:
    """Run a command of this package.

    Args:
        parent: process without which there is no one to run for; its end, however it comes, kills this one, and with it
            Ray ends the trial's workers.
        arguments: of the command line.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be watched
        return EXIT_INTERRUPTED
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return command_line.main(arguments)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
