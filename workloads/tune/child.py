"""Runs `train` for one trial after another, so that what the first has started serves the others too.

Most of a short trial is start-up: the libraries of this process, its connection to Ray, and the fork server that
imports torch for the workers of that connection. It ends with its parent process. SIGINT ends a trial as Ctrl-C
ends a `train`.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workloads import __main__ as command_line
from workloads.cluster import session
from workloads.convnext.run.train import IMPORTS
from workloads.errors import EXIT_INTERRUPTED, PlaceError
from workloads.interruption import end_with
from workloads.reporting import progress

ENDED = "ended"
"""Event of the record that follows a trial's: `exit_code` of its `train`."""


def main(parent: int, address: str) -> None:
    """Train what each line of standard input asks for: `arguments` of the command line, `log` for its messages.

    Args:
        parent: process that this one works for; its end, however it comes, kills this one, and with it
            Ray ends the trial's workers.
        address: of the Ray that all trials use.
    """
    end_with(parent)
    interruption = _Interruption()
    signal.signal(signal.SIGINT, interruption)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in what it starts, which inherit that
    with session.connect(session.prepare(address), imports=IMPORTS):
        for line in iter(sys.stdin.readline, ""):
            progress.emit({"event": ENDED, "exit_code": _train(interruption, **json.loads(line))})


class _Interruption:
    """What SIGINT does: it ends the trial that runs, and between two trials waits for the next.

    It is meant for that one: after a trial that ended by itself though it was told to, this process gets no other.
    """

    def __init__(self) -> None:
        self._wanted = self._waits = False

    def __call__(self, *_: object) -> None:
        if self._wanted:
            raise KeyboardInterrupt
        self._waits = True

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """For the length of the block SIGINT raises KeyboardInterrupt, at once if one waits."""
        self._wanted = True
        try:
            if self._waits:
                raise KeyboardInterrupt
            yield
        finally:
            self._wanted = self._waits = False


def _train(interruption: _Interruption, arguments: list[str], log: str) -> int:
    try:
        with Path(log).open("ab") as messages:
            os.dup2(messages.fileno(), sys.stderr.fileno())
        with interruption.wanted():
            return command_line.main(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as error:  # argparse's
        return int(error.code or 0)
    except Exception as error:  # of whatever kind: the trial has failed, and the search goes on
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        with suppress(OSError):  # the full disk may be the log's
            traceback.print_exc()
        return PlaceError.exit_code if full else 1
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        session.release_places()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
